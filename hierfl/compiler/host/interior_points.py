"""Programs over cones by Clarabel's interior-point method (Goulart and Chen, 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import clarabel
import numpy as np
import scipy.sparse as sp
from jaxtyping import Float

from hierfl.compiler.host.cone_solution import EMPTY, FAILED, SOLVED, UNBOUNDED
from hierfl.compiler.host.standard_form import NONNEGATIVE, SECOND_ORDER, ZERO, Cone

Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


def by_interior_points(
    h: Float[np.ndarray, "width width"], g: Vector, a: Float[np.ndarray, "rows width"], b: Rows, cones: Sequence[Cone]
) -> tuple[int, Vector, Rows]:
    """(Clarabel's verdict, u, z) of a ``ConeProgram``; solved means that there is a point to polish, however rough."""
    solver = clarabel.DefaultSolver(
        sp.csc_matrix(np.triu(h)), g, sp.csc_matrix(-a), b, [_of_clarabel(cone) for cone in cones], _settings()
    )
    try:
        result = solver.solve()
    except BaseException as panic:  # Clarabel's own, of eigenvalues that it does not find, is no Exception
        if type(panic).__name__ != "PanicException":
            raise
        return FAILED, np.full(len(g), np.nan), np.full(len(b), np.nan)
    status, u, z = str(result.status), np.array(result.x), np.array(result.z)
    if "PrimalInfeasible" in status:
        return EMPTY, u, z
    if "DualInfeasible" in status:
        return UNBOUNDED, u, z
    return (SOLVED if np.isfinite(u).all() and np.isfinite(z).all() else FAILED), u, z


def _settings() -> clarabel.DefaultSettings:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.presolve_enable = False
    settings.max_threads = 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    settings.tol_ktratio = 1e-8
    return settings


def _of_clarabel(cone: Cone) -> object:
    if cone.kind == ZERO:
        return clarabel.ZeroConeT(cone.size)
    if cone.kind == NONNEGATIVE:
        return clarabel.NonnegativeConeT(cone.size)
    return clarabel.SecondOrderConeT(cone.size) if cone.kind == SECOND_ORDER else clarabel.PSDTriangleConeT(cone.order)

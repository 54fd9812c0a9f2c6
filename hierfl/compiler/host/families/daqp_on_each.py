"""DAQP on a few quadratic programs over rows, with what is around its calls done for all of them at once."""

from __future__ import annotations

import daqp
import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cone_program import FEASIBLE, FIRMER, INFINITE
from hierfl.compiler.host.families.program_shape import ProgramShape
from hierfl.compiler.host.families.stacks import Stack


def daqp_on_each(
    shape: ProgramShape, g: Float[np.ndarray, "k width"], b: Float[np.ndarray, "k rows"]
) -> tuple[Bool[np.ndarray, " k"], Stack, Stack]:
    """(whether DAQP calls it solved, u, z) of each, as ``ConeProgram`` has them; no row of A may be zero."""
    if not len(g):
        return np.zeros(0, bool), g, b
    bounds = -b / shape.sizes
    unit = np.maximum(1.0, np.abs(bounds).max(axis=1, initial=0.0))
    weight = np.maximum(shape.stiffness * unit, np.abs(g).max(axis=1))
    weight = np.where(weight > 0, weight, 1.0)
    low = bounds / unit[:, None]
    high, sense = np.where(shape.equal, low, INFINITE), np.where(shape.equal, 5, 0).astype(np.int32)
    scaled = shape.h * (unit / weight)[:, None, None]
    if (
        shape.linear
    ):  # of linear programs DAQP calls some infeasible that are not: their vertices with a little curvature
        scaled[:] = FIRMER * np.eye(g.shape[1])
    rows = [shape.unit_rows[0]] * len(g) if shape.shared else shape.unit_rows
    parts = zip(scaled, g / weight[:, None], rows, high, low)
    told = [daqp.solve(*part, sense, primal_tol=FEASIBLE) for part in parts]
    u = np.stack([one[0] for one in told]) * unit[:, None]
    z = -np.stack([one[3]["lam"] for one in told]) * weight[:, None] / shape.sizes
    return np.array([one[2] > 0 for one in told]), u, z

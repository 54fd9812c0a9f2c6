"""Linear and quadratic programs to rounding, from what an interior-point method returns.

Such a method stops at a complementarity gap, so that near a change of the active constraints (where a row's slack and its
multiplier both vanish) y is off by the root of its tolerance. A primal-dual active set iteration, which is semismooth
Newton's method on min(s, z) = 0, has no such loss: the rows with s < z are made equations, their KKT system is solved,
and the rows are chosen anew until they stay (Hintermüller, Ito and Kunisch, SIAM J. Optim. 13, 2002).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

ROUNDS = 20
REGULARISATION, REFINEMENTS = 1e-9, 4  # the KKT matrix may be singular: refinement takes back what this changes
ACCURATE = 1e-10  # of the optimality conditions, relative to the data's scale: else the solver's own answer is kept


class LinearQuadratic(NamedTuple):
    """min x'Px/2 + q'x over Ax + s = b with s = 0 in the first ``zero`` rows and s >= 0 in the others."""

    P: sp.csc_array
    q: np.ndarray
    A: sp.csc_array
    b: np.ndarray
    zero: int


class Polished(NamedTuple):
    """Primal x and multipliers z; ``residual`` is the largest violation of the optimality conditions, relative to the data."""

    x: np.ndarray
    z: np.ndarray
    residual: float


def polished(program: LinearQuadratic, x: np.ndarray, z: np.ndarray) -> Polished | None:
    """The solution next to an approximate one; None where the active rows do not settle on one.

    Parameters
    ----------
    program
        The linear or quadratic program.
    x, z
        Approximate solution and multipliers.
    """
    slack = program.b - program.A @ x
    equations = np.arange(len(z)) < program.zero
    active = equations | (slack < z)
    scale = 1.0 + max(np.max(np.abs(part), initial=0.0) for part in (x, z, program.q, program.b))
    for _ in range(ROUNDS):
        x, z = _on_rows(program, active, x, z)
        slack = program.b - program.A @ x
        violation = np.where(active, np.where(equations, 0.0, -z), -slack)
        wrong = violation > ACCURATE * scale
        if not wrong.any():
            balance = program.P @ x + program.q + program.A.T @ z
            parts = (np.maximum(violation, 0.0), np.abs(balance), np.abs(slack[active]))
            residual = float(np.max(np.concatenate(parts), initial=0.0)) / scale  # NaN if anything is
            return Polished(x, z, residual) if residual <= ACCURATE else None
        active ^= wrong
    return None


def _on_rows(
    program: LinearQuadratic, active: np.ndarray, x: np.ndarray, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The stationary point next to x with the active rows as equations, z = 0 on the others."""
    rows, size = program.A[active], len(x)
    kkt = sp.block_array([[program.P, rows.T], [rows, None]], format="csc")
    shift = sp.diags_array(REGULARISATION * np.where(np.arange(kkt.shape[0]) < size, 1.0, -1.0))
    factors, right = splu((kkt + shift).tocsc()), np.concatenate([-program.q, program.b[active]])
    both = np.concatenate([x, z[active]])
    for _ in range(REFINEMENTS):
        both = both + factors.solve(right - kkt @ both)
    multipliers = np.zeros_like(z)
    multipliers[active] = both[size:]
    return both[:size], multipliers

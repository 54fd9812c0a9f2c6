"""Conic programs that hierfl itself poses to CVXPY: solved tightly, and judged here instead of by CVXPY's warnings.

CVXPY warns of an answer that may be inaccurate, and of parameters that make it canonicalise anew. The user wrote no such
problem: an answer that is not accurate is none, which callers report by name, and ``explain()`` tells the cost.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import cvxpy as cp

ENOUGH = 1e-8  # to what an answer must be right where rounding keeps the solver from more


def tolerances(tight: float) -> dict[str, float]:
    """Clarabel's settings: it goes on to ``tight``, and where it is stuck before, calls an answer almost solved from ENOUGH on."""
    kinds = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
    return dict.fromkeys(kinds, tight) | dict.fromkeys([f"reduced_{kind}" for kind in kinds], ENOUGH)


@contextmanager
def judged_here() -> Iterator[None]:
    """Without CVXPY's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def status_of(problem: cp.Problem, tight: float = 1e-8) -> str:
    """Solve, and say how CVXPY ended; a solver that gives up has shown nothing."""
    try:
        with judged_here():
            problem.solve(solver=cp.CLARABEL, **tolerances(tight))
    except cp.SolverError:
        return str(cp.SOLVER_ERROR)
    return str(problem.status)

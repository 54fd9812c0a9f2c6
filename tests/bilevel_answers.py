"""Answers of small lower levels by plain NumPy: enumeration of active sets, of vertices, and root finding.

Nothing here knows hierfl or a solver: every candidate of a finite list is computed, and the one that satisfies the optimality
conditions is the answer. Meant for a handful of variables and about ten rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import numpy as np
from scipy.linalg import null_space
from scipy.optimize import brentq, nnls

SLACK = 1e-10  # by which a candidate may violate a condition, relative to the sizes of the data


class NoAnswer(ArithmeticError):  # noqa: N818
    """No candidate satisfies the optimality conditions: the set is empty, or the problem is unbounded below."""


def subsets(count: int, largest: int) -> Iterator[list[int]]:
    """All subsets of ``range(count)`` of at most ``largest`` members, small ones first."""
    for size in range(min(count, largest) + 1):
        yield from map(list, combinations(range(count), size))


def solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """A solution of a linear system, that of least norm; None where there is none."""
    if not matrix.size:
        return np.zeros(matrix.shape[1]) if np.all(np.abs(right) <= SLACK) else None
    found = np.linalg.lstsq(matrix, right, rcond=1e-11)[0]
    size = 1 + np.abs(right).max(initial=0) + np.abs(matrix).max() * np.abs(found).max(initial=0)
    return found if np.abs(matrix @ found - right).max(initial=0) <= SLACK * size else None


def on_flat(matrix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The solutions of a linear system, consistent and perhaps redundant, as a point and an orthonormal basis."""
    point = solved(matrix, right)
    if point is None:
        raise NoAnswer("the equations contradict each other")
    return point, null_space(matrix, rcond=1e-11) if matrix.size else np.eye(matrix.shape[1])


def likely_active(h: np.ndarray, free: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[list[int]]:
    """The active set that Lawson and Hanson's nonnegative least squares finds: a guess that saves most enumerations."""
    if not len(a) or not len(free) or not np.array_equal(h, h.T):
        return []
    pulled = np.linalg.solve(np.linalg.cholesky(h), a.T)
    ending = np.append(np.zeros(len(free)), 1.0)
    return [np.flatnonzero(nnls(np.vstack([-pulled, a @ free - b]), ending)[0]).tolist()]


def fits(y: np.ndarray, rows: np.ndarray, limits: np.ndarray) -> bool:
    """Whether rows @ y <= limits."""
    return bool(np.all(rows @ y <= limits + SLACK * (1 + np.abs(limits) + np.abs(rows) @ np.abs(y))))


def quadratic_answer(
    hessian: np.ndarray,
    linear: np.ndarray,
    rows: np.ndarray,
    limits: np.ndarray,
    equal: np.ndarray | None = None,
    totals: np.ndarray | None = None,
) -> np.ndarray:
    """The y that minimises y'Hy/2 + c'y, H positive definite, over rows @ y <= limits and equal @ y == totals.

    H may lack symmetry: the answer is then that of the variational inequality with the mapping H y + c.
    """
    if equal is None or totals is None:
        equal, totals = np.zeros((0, len(linear))), np.zeros(0)
    start, basis = on_flat(equal, totals)
    h, c = basis.T @ hessian @ basis, basis.T @ (hessian @ start + linear)
    h = (h + h.T) / 2 if np.allclose(h, h.T, rtol=0, atol=1e-14 * np.abs(h).max(initial=0)) else h
    a, b = rows @ basis, limits - rows @ start
    if np.any(b[np.abs(a).max(axis=1, initial=0) <= SLACK] < -SLACK * (1 + np.abs(limits).max(initial=0))):
        raise NoAnswer("a row without variables cannot hold")
    free, pulls = np.linalg.solve(h, -c), np.linalg.solve(h, a.T)
    for active in chain(likely_active(h, free, a, b), subsets(len(a), len(c))):
        forces = solved(a[active] @ pulls[:, active], a[active] @ free - b[active])
        if forces is None or np.any(forces < -SLACK * (1 + np.abs(forces).max(initial=0))):
            continue
        z = free - pulls[:, active] @ forces
        if fits(z, a, b):
            return start + basis @ z
    raise NoAnswer("no active set satisfies the conditions")


def answer_in_ball(
    hessian: np.ndarray, linear: np.ndarray, rows: np.ndarray, limits: np.ndarray, centre: np.ndarray, radius: float
) -> np.ndarray:
    """The y that minimises y'Hy/2 + c'y, H positive definite, over rows @ y <= limits and |y - centre| <= radius."""
    try:
        inside = quadratic_answer(hessian, linear, rows, limits)
    except NoAnswer:
        inside = None
    if inside is not None and np.linalg.norm(inside - centre) <= radius:
        return inside
    for active in subsets(len(rows), len(linear) - 1):
        try:
            start, basis = on_flat(rows[active], limits[active])
        except NoAnswer:
            continue
        y, force = _on_sphere(hessian, linear, centre, radius, start, basis)
        if y is None or not fits(y, rows, limits):
            continue
        pull = -(hessian @ y + linear + force * (y - centre))
        forces = solved(rows[active].T, pull)
        if forces is not None and np.all(forces >= -1e-8):
            return y
    raise NoAnswer("no active set satisfies the conditions")


def _on_sphere(
    hessian: np.ndarray, linear: np.ndarray, centre: np.ndarray, radius: float, start: np.ndarray, basis: np.ndarray
) -> tuple[np.ndarray | None, float]:
    """The minimiser over the ball cut by a flat, where it lies on the sphere, and the sphere's multiplier."""
    middle = start + basis @ (basis.T @ (centre - start))
    left = radius**2 - np.sum((middle - centre) ** 2)
    if left <= 0:
        return None, 0.0
    h, c = basis.T @ hessian @ basis, basis.T @ (hessian @ middle + linear)

    def place(force: float) -> np.ndarray:
        return np.linalg.solve(h + force * np.eye(len(c)), -c)

    def excess(force: float) -> float:
        return float(np.linalg.norm(place(force)) / np.sqrt(left) - 1)

    if excess(0.0) < 0:
        return None, 0.0
    force = brentq(excess, 0.0, 1 + np.linalg.norm(c) / np.sqrt(left), xtol=1e-15, rtol=1e-15)
    return middle + basis @ place(force), force


def vertices(
    rows: np.ndarray, limits: np.ndarray, equal: np.ndarray | None = None, totals: np.ndarray | None = None
) -> np.ndarray:
    """The vertices of {y: rows @ y <= limits, equal @ y == totals}, one a row, each once."""
    if equal is None or totals is None:
        equal, totals = np.zeros((0, rows.shape[1])), np.zeros(0)
    start, basis = on_flat(equal, totals)
    a, b = rows @ basis, limits - rows @ start
    chosen = np.array(list(combinations(range(len(a)), basis.shape[1])), int)
    regular = np.abs(np.linalg.det(a[chosen])) > 1e-9
    met = np.linalg.solve(a[chosen[regular]], b[chosen[regular]][..., None])[..., 0]
    corners = start + met @ basis.T
    size = 1 + np.abs(limits) + np.abs(corners) @ np.abs(rows).T
    corners = corners[np.all(corners @ rows.T <= limits + SLACK * size, axis=1)]
    return corners[np.unique(np.round(corners, 8), axis=0, return_index=True)[1]]


def linear_answers(
    cost: np.ndarray,
    rows: np.ndarray,
    limits: np.ndarray,
    equal: np.ndarray | None = None,
    totals: np.ndarray | None = None,
) -> np.ndarray:
    """The vertices at which cost @ y is least over a polytope, one a row: their hull is all solutions."""
    corners = vertices(rows, limits, equal, totals)
    if not len(corners):
        raise NoAnswer("the set has no vertices")
    values = corners @ cost
    return corners[values <= values.min() + 1e-9 * (1 + np.abs(values).max())]


def linear_answer(cost: np.ndarray, rows: np.ndarray, limits: np.ndarray, **equations: np.ndarray) -> np.ndarray:
    """The only solution of a linear program over a polytope."""
    answers = linear_answers(cost, rows, limits, **equations)
    if len(answers) > 1:
        raise NoAnswer(f"{len(answers)} vertices are solutions")
    return answers[0]


def box_rows(low: Sequence[float], high: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """low <= y <= high as rows @ y <= limits."""
    size = len(low)
    return np.vstack([np.eye(size), -np.eye(size)]), np.concatenate([np.asarray(high, float), -np.asarray(low, float)])

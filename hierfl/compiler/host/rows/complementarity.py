"""Affine variational inequalities by complementary pivots (Lemke, 1965; Cottle, Pang and Stone, 1992, section 4.4)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

PIVOTS = 50  # for each row
TOLERANCE = 1e-11

Rows = Float[np.ndarray, " rows"]


def by_pivots(
    h: Float[np.ndarray, "width width"],
    g: Float[np.ndarray, " width"],
    a: Float[np.ndarray, "rows width"],
    b: Rows,
    equations: int,
) -> tuple[Float[np.ndarray, " width"], Rows] | None:
    """(u, z) with H u + g = A' z, the first rows of A u + b zero, the others nonnegative and complementary to z >= 0.

    H is monotone, and definite where the equations leave u free. None where there is no such pair, or none was found.
    """
    if not all(np.isfinite(part).all() for part in (h, g, a, b)):
        return None
    width, equal, rows = len(g), a[:equations], a[equations:]
    block = np.block([[h, -equal.T], [equal, np.zeros((equations, equations))]])
    answers = np.linalg.lstsq(
        block,
        np.hstack(
            [np.concatenate([-g, -b[:equations]])[:, None], np.vstack([rows.T, np.zeros((equations, len(rows)))])]
        ),
        rcond=1e-13,
    )[0]
    free, moved = answers[:, 0], answers[:, 1:]
    z = lemke(rows @ moved[:width], rows @ free[:width] + b[equations:])
    if z is None:
        return None
    u = free + moved @ z
    return u[:width], np.concatenate([u[width:], z])


def lemke(m: Float[np.ndarray, "rows rows"], q: Rows) -> Rows | None:
    """z >= 0 with w = M z + q >= 0 and z'w = 0; None where a ray shows that there is none (M positive semidefinite)."""
    count = len(q)
    if not count or (q >= 0).all():
        return np.zeros(count)
    # columns: w, z, the artificial variable, the right-hand side and, to break ties, a perturbation of it
    table = np.hstack([np.eye(count), -m, -np.ones((count, 1)), q[:, None], np.eye(count)])
    artificial, right = 2 * count, 2 * count + 1
    basis = np.arange(count)
    row, entering = int(np.argmin(q)), artificial
    for _ in range(PIVOTS * (count + 1)):
        leaving = basis[row]
        table[row] /= table[row, entering]
        others = np.arange(count) != row
        table[others] -= np.outer(table[others, entering], table[row])
        basis[row] = entering
        if leaving == artificial:
            z = np.zeros(2 * count + 1)
            z[basis] = table[:, right]
            return np.maximum(z[count : 2 * count], 0.0)
        entering = leaving + count if leaving < count else leaving - count
        column = table[:, entering]
        able = np.flatnonzero(column > TOLERANCE * np.abs(table[:, : 2 * count]).max())
        if not len(able):
            return None
        row = _first(table, able, column, right, basis, artificial)
    return None


def _first(
    table: np.ndarray, able: np.ndarray, column: np.ndarray, right: int, basis: np.ndarray, artificial: int
) -> int:
    """The row of the least ratio, ties broken by the perturbation; the artificial variable leaves first."""
    ratios = table[able, right] / column[able]
    tied = able[ratios <= ratios.min() + TOLERANCE * (1.0 + abs(ratios.min()))]
    if artificial in basis[tied]:
        return int(tied[np.flatnonzero(basis[tied] == artificial)[0]])
    for place in range(right + 1, table.shape[1]):
        if len(tied) == 1:
            break
        ratios = table[tied, place] / column[tied]
        tied = tied[ratios <= ratios.min() + TOLERANCE]
    return int(tied[0])

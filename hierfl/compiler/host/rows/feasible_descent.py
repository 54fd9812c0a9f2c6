"""Costs that hardly differ: from a point of a face along directions of steepest descent that stay feasible, to where none is left."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import nnls

HELD = 1e-12  # of a row's size, up to which it holds
FLAT, STEEP = 1e-14, 1e-12  # of the forces: up to which a slope is rounding, and beyond which it is none
STEPS = 4  # for each row and each entry of u

Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


def descended(
    h: Float[np.ndarray, "width width"],
    g: Vector,
    a: Float[np.ndarray, "rows width"],
    b: Rows,
    equal: Bool[np.ndarray, " rows"],
    u: Vector,
) -> tuple[Vector, Rows, bool]:
    """(u, z, whether it falls without end) where u'Hu/2 + g'u falls no more over A u + b >= 0, the ``equal`` rows zero, from a feasible u.

    Rows are of length 1.

    The direction of steepest descent is what is left of -(H u + g) beyond the multipliers that explain most of it, z >= 0 on the rows
    that hold (Moreau, 1962: projections on a cone and its polar add up to the whole).
    """
    z = np.zeros(len(b))
    for _ in range(STEPS * (len(u) + len(b))):
        slack = a @ u + b
        held = np.flatnonzero(equal | (slack <= HELD * (1.0 + np.abs(b) + np.abs(a) @ np.abs(u))))
        slope = h @ u + g
        try:
            z = _multipliers(a, equal, held, slope)
        except RuntimeError:  # SciPy's method went in circles
            break
        direction = a.T @ z - slope
        size = float(np.linalg.norm(direction))
        forces = float(np.abs(h).max(initial=0.0) * np.abs(u).max(initial=0.0)) + float(np.abs(g).max())
        if size <= FLAT * forces:
            break
        direction /= size
        moved = a @ direction
        ahead = np.setdiff1d(np.flatnonzero(moved < -HELD), held)
        lengths = slack[ahead] / -moved[ahead]
        curvature = float(direction @ h @ direction)
        length = min(lengths.min(initial=np.inf), size / curvature if curvature > 0 else np.inf)
        if not np.isfinite(length):
            return u, z, size > STEEP * forces
        u = u + length * direction
    return u, z, False


def _multipliers(
    a: Float[np.ndarray, "rows width"], equal: Bool[np.ndarray, " rows"], held: Int[np.ndarray, " held"], slope: Vector
) -> Rows:
    """Those on the rows that hold which explain most of the slope."""
    z = np.zeros(len(a))
    size = float(np.abs(slope).max())
    if not len(held) or size == 0:
        return z  # of a matrix without columns SciPy's method aborts the process
    both = held[equal[held]]
    pulls, _ = nnls(np.hstack([a[held].T, -a[both].T]), slope / size)
    z[held] = pulls[: len(held)]
    z[both] -= pulls[len(held) :]
    return size * z

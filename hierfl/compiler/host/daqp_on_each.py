"""DAQP on a few quadratic programs over rows, with what is around its calls done for all of them at once."""

from __future__ import annotations

import daqp
import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cone_program import FEASIBLE, FIRMER, INFINITE

Stack = Float[np.ndarray, "k *shape"]


def daqp_on_each(
    h: Float[np.ndarray, "k width width"],
    g: Float[np.ndarray, "k width"],
    a: Float[np.ndarray, "k rows width"],
    b: Float[np.ndarray, "k rows"],
    equal: Bool[np.ndarray, " rows"],
) -> tuple[Bool[np.ndarray, " k"], Stack, Stack]:
    """(whether DAQP calls it solved, u, z) of each, as ``ConeProgram`` has them; no row of A may be zero."""
    sizes = np.linalg.norm(a, axis=2)
    rows, bounds = a / sizes[..., None], -b / sizes
    unit = np.maximum(1.0, np.abs(bounds).max(axis=1, initial=0.0))
    weight = np.maximum(np.abs(h).max(axis=(1, 2)) * unit, np.abs(g).max(axis=1))
    weight = np.where(weight > 0, weight, 1.0)
    low = bounds / unit[:, None]
    high, sense = np.where(equal, low, INFINITE), np.where(equal, 5, 0).astype(np.int32)
    scaled = h * (unit / weight)[:, None, None]
    if (
        not h.any()
    ):  # linear programs, of which DAQP calls some infeasible that are not: their vertices with a little curvature
        scaled = np.broadcast_to(FIRMER * np.eye(g.shape[1]), h.shape).copy()
    parts = zip(scaled, g / weight[:, None], rows, high, low)
    told = [daqp.solve(*part, sense, primal_tol=FEASIBLE) for part in parts]
    u = np.stack([one[0] for one in told]) * unit[:, None]
    z = -np.stack([one[3]["lam"] for one in told]) * weight[:, None] / sizes
    return np.array([one[2] > 0 for one in told]), u, z

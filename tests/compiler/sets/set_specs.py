"""A table of constraint specifications: what is declared, and the family it must be recognised as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

N = 5
RNG = np.random.default_rng(0)
A = RNG.standard_normal((2, N))
Q = np.linalg.qr(RNG.standard_normal((N, N)))[0]
U, V = np.linalg.qr(RNG.standard_normal((3, 3)))[0], np.linalg.qr(RNG.standard_normal((4, 4)))[0]
M = RNG.standard_normal((N, N))
G = RNG.standard_normal((30, 40))
W = np.arange(1.0, N + 1)
LOW, HIGH = np.linspace(-1, 0, N), np.linspace(0.5, 2, N)


@dataclass(frozen=True)
class Spec:
    """Constraints on y (one or more variables of ``shapes``) given x (N,), r > 0 and a client's c (N,); the expected kind."""

    name: str
    build: Callable[..., list[Any]]
    kind: str
    shapes: tuple[tuple[int, ...], ...] = ((N,),)
    attributes: tuple[tuple[str, bool], ...] = ()


def matrix(shape: tuple[int, int] = (3, 4)) -> dict[str, Any]:
    """One matrix variable."""
    return {"shapes": (shape,)}


PAIR: dict[str, Any] = {"shapes": ((N,), ())}  # a vector and a scalar
TRIPLE: dict[str, Any] = {"shapes": ((N,), (), ())}
SYMMETRIC: dict[str, Any] = {"shapes": ((3, 3),), "attributes": (("symmetric", True),)}

FIXED_AND_MOVING = [
    Spec("free", lambda y, x, r, c: [], "free"),
    Spec("orthant", lambda y, x, r, c: [y >= 0], "box"),
    Spec("negative orthant", lambda y, x, r, c: [y <= 0], "box"),
    Spec("fixed box", lambda y, x, r, c: [y >= LOW, y <= HIGH], "box"),
    Spec("moving box", lambda y, x, r, c: [y >= x - r, y <= x + r], "box"),
    Spec("a client's box", lambda y, x, r, c: [y >= c, y <= c + r], "box"),
    Spec("abs", lambda y, x, r, c: [cp.abs(y - x) <= r], "box"),
    Spec("weighted max-norm ball", lambda y, x, r, c: [cp.norm(cp.multiply(W, y - x), "inf") <= r], "box"),
    Spec("norm_inf", lambda y, x, r, c: [cp.norm(y - c, "inf") <= r], "box"),
    Spec("norm_inf along rows", lambda y, x, r, c: [cp.norm(y, "inf", axis=1) <= r * x[:3] ** 2], "box", **matrix()),
    Spec("norm_inf along columns", lambda y, x, r, c: [cp.norm(y, "inf", axis=0) <= r], "box", **matrix()),
    Spec("max", lambda y, x, r, c: [cp.max(y) <= r], "box"),
    Spec("min", lambda y, x, r, c: [cp.min(y - x) >= -r], "box"),
    Spec("maximum", lambda y, x, r, c: [cp.maximum(y, -2 * y) <= r], "box"),
    Spec("scaled bounds", lambda y, x, r, c: [2 * y <= 4 - x, -3 * y <= 5], "box"),
    Spec("bounds with moving coefficients", lambda y, x, r, c: [r * y <= x + 4], "box"),
    Spec("some entries only", lambda y, x, r, c: [y[0] >= x[1], y[2:4] <= r], "box"),
    Spec("pinned entries", lambda y, x, r, c: [y[:2] == x[:2], y >= -9], "box"),
    Spec("ball", lambda y, x, r, c: [cp.norm(y - x) <= r], "ball"),
    Spec("a client's ball", lambda y, x, r, c: [cp.norm(y - x) <= cp.sum_squares(c)], "ball"),
    Spec("ball at the origin", lambda y, x, r, c: [cp.norm(y) <= 1], "ball"),
    Spec("ball by squares", lambda y, x, r, c: [cp.sum_squares(y - x) <= r], "ball"),
    Spec("ball by a squared norm", lambda y, x, r, c: [cp.square(cp.norm(y - x)) <= r], "ball"),
    Spec("half squared norm", lambda y, x, r, c: [0.5 * cp.sum_squares(y - x) <= cp.square(r)], "ball"),
    Spec("scaled ball", lambda y, x, r, c: [r * cp.norm(2 * y - x) <= 3], "ball"),
    Spec("rotated ball", lambda y, x, r, c: [cp.norm(Q @ y - x) <= r], "ball"),
    Spec("second-order cone constraint", lambda y, x, r, c: [cp.SOC(r, y - x)], "ball"),
    Spec("ball of a tall matrix", lambda y, x, r, c: [cp.norm(cp.hstack([y, -y]) - 0.1) <= 2 * r + 1], "program"),
    Spec("ball beside constants", lambda y, x, r, c: [cp.norm(cp.hstack([y - x, 0.5])) <= r], "program"),
    Spec("ball of a projection", lambda y, x, r, c: [cp.norm(Q[:2] @ y - x[:2]) <= r], "ball"),
    Spec("Frobenius ball", lambda y, x, r, c: [cp.norm(y - 1, "fro") <= r], "ball", **matrix()),
    Spec("a ball for each row", lambda y, x, r, c: [cp.norm(y, 2, axis=1) <= r * cp.square(x[:3])], "ball", **matrix()),
    Spec("a ball for each column", lambda y, x, r, c: [cp.norm(y - r, 2, axis=0) <= 1], "ball", **matrix()),
    Spec("diagonal ellipsoid", lambda y, x, r, c: [cp.norm(cp.multiply(W, y - x)) <= r], "program"),
    Spec("general ellipsoid", lambda y, x, r, c: [cp.norm(M @ y - x) <= 2 + r], "program"),
    Spec("flat ellipsoid", lambda y, x, r, c: [cp.norm(A @ y - x[:2]) <= r], "program"),
    Spec("quadratic form", lambda y, x, r, c: [cp.quad_form(y - x, M @ M.T) <= r], "program"),
    Spec("l1 ball", lambda y, x, r, c: [cp.norm1(y - x) <= r], "l1 ball"),
    Spec("l1 ball by a sum", lambda y, x, r, c: [cp.sum(cp.abs(y - c)) <= r], "l1 ball"),
    Spec("weighted l1 ball", lambda y, x, r, c: [W @ cp.abs(y - x) <= 2 * r], "l1 ball"),
    Spec("l1 ball with moving weights", lambda y, x, r, c: [cp.norm1(cp.multiply(c, y) - x) <= 3 * r], "program"),
    Spec("rotated l1 ball", lambda y, x, r, c: [cp.norm1(3 * Q @ y - x) <= r], "l1 ball"),
    Spec("l1 ball of each column", lambda y, x, r, c: [cp.norm(y, 1, axis=0) <= r], "l1 ball", **matrix()),
    Spec("sum of row norms", lambda y, x, r, c: [cp.mixed_norm(y - 1, 2, 1) <= r], "program", **matrix()),
    Spec("nuclear ball", lambda y, x, r, c: [cp.norm(y - r, "nuc") <= 1], "program", **matrix()),
    Spec("spectral ball", lambda y, x, r, c: [cp.norm(y, 2) <= r], "program", **matrix()),
    Spec("halfspace", lambda y, x, r, c: [A[0] @ y <= r], "halfspace"),
    Spec("moving normal", lambda y, x, r, c: [x @ y <= r], "halfspace"),
    Spec("a client's normal", lambda y, x, r, c: [c @ y >= cp.sum(x)], "halfspace"),
    Spec("budget", lambda y, x, r, c: [cp.sum(y) <= cp.sum(x)], "halfspace"),
    Spec("slab", lambda y, x, r, c: [cp.abs(A[0] @ y - x[0]) <= r], "slab"),
    Spec("slab of a moving normal", lambda y, x, r, c: [c @ y <= r, 2 * c @ y >= -3], "slab"),
    Spec("orthogonal slabs", lambda y, x, r, c: [cp.abs(Q[:2] @ y) <= r], "polyhedron"),
    Spec("rotated box", lambda y, x, r, c: [Q @ y >= x - r, Q @ y <= x + r], "polyhedron"),
    Spec("pairs of halfspaces", lambda y, x, r, c: [y[:2] + y[2:4] <= x[:2]], "product of halfspace, free"),
    Spec("affine set", lambda y, x, r, c: [A @ y == x[:2]], "affine"),
    Spec("affine set that turns", lambda y, x, r, c: [cp.vstack([x, c]) @ y == r], "affine"),
    Spec("dependent rows", lambda y, x, r, c: [np.vstack([A, A[:1]]) @ y == cp.hstack([x[:2], x[0]])], "affine"),
    Spec("hyperplane with a moving normal", lambda y, x, r, c: [x @ y == r], "affine"),
    Spec("simplex", lambda y, x, r, c: [y >= 0, cp.sum(y) == 1], "simplex"),
    Spec("moving total", lambda y, x, r, c: [y >= 0, cp.sum(y) == r], "simplex"),
    Spec("scaled simplex", lambda y, x, r, c: [-2 * y <= 0, 3 * cp.sum(y) == r], "simplex"),
    Spec(
        "a simplex for each row",
        lambda y, x, r, c: [y >= 0, cp.sum(y, axis=1) == cp.square(x[:3])],
        "simplex",
        **matrix(),
    ),
    Spec("weighted simplex", lambda y, x, r, c: [y >= 0, W @ y == r], "strip"),
    Spec("simplex with moving weights", lambda y, x, r, c: [y >= 0, cp.exp(c) @ y == r], "strip"),
    Spec("shifted simplex", lambda y, x, r, c: [y >= x, cp.sum(y) == cp.sum(x) + r], "strip"),
    Spec("capped simplex", lambda y, x, r, c: [y >= 0, y <= 0.5, cp.sum(y) == r], "strip"),
    Spec("box and budget", lambda y, x, r, c: [y >= 0, y <= 1, cp.sum(y) <= r], "strip"),
    Spec("box and slab", lambda y, x, r, c: [cp.norm_inf(y - x) <= 1, cp.abs(A[0] @ y) <= r], "strip"),
    Spec("a budget for each column", lambda y, x, r, c: [y >= 0, cp.sum(y, axis=0) <= r], "strip", **matrix()),
    Spec("nondecreasing", lambda y, x, r, c: [cp.diff(y) >= 0], "polyhedron"),
    Spec("nonincreasing, shifted", lambda y, x, r, c: [y[1:] - x[1:] <= y[:-1] + 0.1 * r], "polyhedron"),
    Spec("few rows over a box", lambda y, x, r, c: [y >= -1, y <= x + 2, A @ y <= r], "polyhedron"),
    Spec(
        "rows and equations", lambda y, x, r, c: [y >= 0, A[0] @ y == A[0] @ cp.square(x), A[1] @ y <= 5], "polyhedron"
    ),
    Spec("rows without a box", lambda y, x, r, c: [M[:3] @ y <= x[:3] + r], "polyhedron"),
    Spec("rows that turn", lambda y, x, r, c: [y >= 0, cp.vstack([x, c]) @ y <= r], "polyhedron"),
]

CONES = [
    Spec("second-order cone", lambda y, t, x, r, c: [cp.norm(y - x) <= t], "second-order cone", **PAIR),
    Spec(
        "wide second-order cone",
        lambda y, t, x, r, c: [cp.norm(2 * Q @ y - x) <= 3 * t + r],
        "second-order cone",
        **PAIR,
    ),
    Spec("SOC constraint on y", lambda y, t, x, r, c: [cp.SOC(t + r, y)], "second-order cone", **PAIR),
    Spec("epigraph of the l1 norm", lambda y, t, x, r, c: [cp.norm1(y - x) <= t], "program", **PAIR),
    Spec("epigraph of the max norm", lambda y, t, x, r, c: [cp.norm_inf(y - x) <= 2 * t], "polyhedron", **PAIR),
    Spec("rotated cone", lambda y, s, t, x, r, c: [cp.quad_over_lin(y - x, s) <= t], "program", **TRIPLE),
    Spec("standard rotated cone", lambda y, s, t, x, r, c: [cp.quad_over_lin(y, 2 * s) <= t], "program", **TRIPLE),
    Spec("PSD matrices", lambda y, x, r, c: [y >> 0], "product of affine, PSD cone", **SYMMETRIC),
    Spec("shifted PSD cone", lambda y, x, r, c: [y >> r * np.eye(3)], "product of affine, PSD cone", **SYMMETRIC),
    Spec(
        "rotated PSD cone",
        lambda y, x, r, c: [U @ y @ U.T >> cp.diag(x[:3])],
        "product of affine, PSD cone",
        **SYMMETRIC,
    ),
    Spec("largest eigenvalue", lambda y, x, r, c: [cp.lambda_max(y) <= r], "product of affine, PSD cone", **SYMMETRIC),
    Spec(
        "smallest eigenvalue", lambda y, x, r, c: [cp.lambda_min(y) >= -r], "product of affine, PSD cone", **SYMMETRIC
    ),
    Spec("no symmetry declared", lambda y, x, r, c: [y >> 0], "PSD cone", **matrix((3, 3))),
]

COMPOSED = [
    Spec("ball and box", lambda y, x, r, c: [cp.norm(y - x) <= r, y >= 0], "program"),
    Spec("ball and halfspace", lambda y, x, r, c: [cp.norm(y - x) <= r, cp.sum(y) <= 0], "program"),
    Spec("ball and hyperplane", lambda y, x, r, c: [cp.norm(y) <= r, cp.sum(y) == 0.5], "program"),
    Spec("ball and simplex", lambda y, x, r, c: [cp.norm(y) <= 0.8, y >= 0, cp.sum(y) == 1], "program"),
    Spec("two balls that meet", lambda y, x, r, c: [cp.norm(y - x) <= r, cp.norm(y) <= 1], "program"),
    Spec("l1 ball and hyperplane", lambda y, x, r, c: [cp.norm1(y) <= 2 * r, cp.sum(y) == 0.2], "program"),
    Spec(
        "density matrices",
        lambda y, x, r, c: [y >> 0, cp.trace(y) == r],
        "product of affine, program",
        **SYMMETRIC,
    ),
    Spec("ellipsoid and box", lambda y, x, r, c: [cp.norm(M @ y) <= 2, y >= -0.3], "program"),
    Spec(
        "doubly nonnegative", lambda y, x, r, c: [y >> 0, y >= 0.1], "program", **SYMMETRIC
    ),
    Spec("ball beside a box", lambda y, x, r, c: [cp.norm(y[:3] - x[:3]) <= r, y[3:] >= x[3:]], "product of box, ball"),
    Spec(
        "two balls side by side", lambda y, x, r, c: [cp.norm(y[:2]) <= r, cp.norm(y[2:] - 1) <= r], "product of ball"
    ),
    Spec(
        "simplex beside a halfspace",
        lambda y, x, r, c: [y[:3] >= 0, cp.sum(y[:3]) == r, y[3] + y[4] <= 1],
        "product of simplex, halfspace",
    ),
    Spec(
        "two variables",
        lambda y, z, x, r, c: [cp.norm(y - x) <= r, z >= 0],
        "product of box, ball",
        shapes=((N,), (2, 2)),
    ),
    Spec("variables coupled", lambda y, z, x, r, c: [y + z == x], "affine", shapes=((N,), (N,))),
    Spec(
        "ball over two variables",
        lambda y, z, x, r, c: [cp.norm(cp.hstack([y - x, z])) <= r],
        "ball",
        shapes=((N,), (2,)),
    ),
    Spec("a scalar", lambda y, x, r, c: [cp.square(y - x[0]) <= r], "ball", shapes=((),)),
    Spec("one entry in a simplex", lambda y, x, r, c: [y >= 0, cp.sum(y) == r], "box", shapes=((1,),)),
]

BY_PROGRAM = [
    Spec("sum of exponentials", lambda y, x, r, c: [cp.sum(cp.exp(y)) <= 5 + r], "program"),
    Spec("p-norm", lambda y, x, r, c: [cp.norm(y - x, 3) <= r], "program"),
    Spec("norm under its own sum", lambda y, x, r, c: [cp.norm(y) <= 2 + cp.sum(y)], "program"),
    Spec("entropy", lambda y, x, r, c: [cp.sum(cp.entr(y)) >= 0.1], "program"),
    Spec("eigenvalue of what has to be symmetric", lambda y, x, r, c: [cp.lambda_max(y) <= r], "program", **matrix((3, 3))),
    Spec("turning ellipsoid", lambda y, x, r, c: [cp.norm((M + cp.diag(x)) @ y) <= r], "program"),
]

SPECS = [*FIXED_AND_MOVING, *CONES, *COMPOSED, *BY_PROGRAM]

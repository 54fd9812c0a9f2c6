"""Cones and rows: which there are, the projections on their duals, and the derivatives of these, as one matrix for all rows.

Exponential and power cones have three rows each,

    y exp(x / y) <= z, y > 0, and its limits;        x^share y^(1 - share) >= |z|, x >= 0, y >= 0.

What is neither in such a cone nor in its polar is nearest to a point of the boundary that one number tells: x / y for an exponential
cone (Friberg, 2023), |z| for a power cone (Hien, 2015).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import brentq

from hierfl.compiler.programs.small_and_sparse import Entries, Matrix, entries_at, from_entries, together

ZERO, NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE = "zero", "nonnegative", "second order", "semidefinite"
EXPONENTIAL, POWER = OF_THREE = "exponential", "power"
KINDS = (ZERO, NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE)  # in the order of rows of critical cones

Rows = Float[np.ndarray, " rows"]


class NoStandardFormError(Exception):
    """The problem needs a cone that is none of these, or has no such form at all; the message says why."""


@dataclass(frozen=True)
class Cone:
    """Rows in one cone: ``size`` rows, or for a semidefinite one the scaled upper triangle of a matrix of this ``order``.

    A power cone is that of x^share y^(1 - share) >= |z|.
    """

    kind: str
    size: int
    order: int = 0
    share: float | None = None


def rows_of(equations: int, inequalities: int, cones: Sequence[Cone] = ()) -> list[Cone]:
    """So many equations, so many inequalities, and other cones: those that have rows."""
    return [cone for cone in (Cone(ZERO, equations), Cone(NONNEGATIVE, inequalities), *cones) if cone.size]


def of_kind(cones: Sequence[Cone], *kinds: str) -> Bool[np.ndarray, " rows"]:
    """Which rows are in cones of some kinds."""
    return np.concatenate([np.zeros(0, bool), *(np.full(cone.size, cone.kind in kinds) for cone in cones)])


def triangle(order: int) -> np.ndarray:
    """The matrix that takes vec(S) to the upper triangle by columns, off-diagonal entries times sqrt(2), S made symmetric."""
    columns, rows = np.tril_indices(order)
    place, picked = np.arange(len(rows)), np.zeros((len(rows), order * order))
    scale = np.where(rows == columns, 0.5, np.sqrt(0.5))
    picked[place, rows + order * columns] += scale
    picked[place, columns + order * rows] += scale
    return picked


def seen_by(vectors: np.ndarray, i: np.ndarray, j: np.ndarray) -> Float[np.ndarray, "pairs rows"]:
    """The maps of the upper triangle of S to v_i' S v_j, of pairs of vectors (order, .)."""
    columns, rows = np.tril_indices(len(vectors))
    scale = np.where(rows == columns, 0.5, np.sqrt(0.5))
    one, other = vectors[:, i], vectors[:, j]
    return np.asarray((scale[:, None] * (one[rows] * other[columns] + one[columns] * other[rows])).T)


def blocks(cones: Sequence[Cone]) -> Iterator[tuple[Cone, slice]]:
    """Each cone with the rows that are in it."""
    start = 0
    for cone in cones:
        yield cone, slice(start, start + cone.size)
        start += cone.size


def project_dual(cones: Sequence[Cone], v: Rows) -> Rows:
    """The nearest point of K*: all of space for equations, the cone itself for the others."""
    out = np.array(v, float)
    for cone, rows in blocks(cones):
        if cone.kind == NONNEGATIVE:
            out[rows] = np.maximum(v[rows], 0.0)
        elif cone.kind == SECOND_ORDER:
            out[rows] = _second_order(v[rows])
        elif cone.kind == SEMIDEFINITE:
            values, vectors = np.linalg.eigh(_matrix(v[rows], cone.order))
            out[rows] = _triangle_of((vectors * np.maximum(values, 0.0)) @ vectors.T)
        elif cone.kind in OF_THREE:
            out[rows] = v[rows] + nearest_of_three(cone, -v[rows])[0]
    return out


def nearest_of_three(cone: Cone, v: Rows) -> tuple[Rows, Float[np.ndarray, "3 3"]]:
    """The nearest point of an exponential or a power cone, with its derivative."""
    return _nearest_exponential(v) if cone.share is None else _nearest_power(v, cone.share)


def dual_slope(cones: Sequence[Cone], v: Rows, dense: bool) -> Matrix:
    """The derivative of ``project_dual`` at v, rows by rows; where there are several, one of them."""
    parts: list[Entries] = []
    for cone, rows in blocks(cones):
        if cone.kind in (ZERO, NONNEGATIVE):
            whole = rows.start + np.flatnonzero((v[rows] > 0) | (cone.kind == ZERO))
            parts.append((whole, whole, np.ones(len(whole))))
        elif cone.kind in OF_THREE:
            parts.append(entries_at(np.eye(3) - nearest_of_three(cone, -v[rows])[1], rows.start, rows.start))
        else:
            slope = _second_order_slope(v[rows]) if cone.kind == SECOND_ORDER else _semidefinite_slope(v[rows], cone.order)
            parts.append(entries_at(slope, rows.start, rows.start))
    return from_entries(*together(parts), (len(v), len(v)), dense)


def distance(cones: Sequence[Cone], e: Rows) -> float:
    """How far e is from K."""
    return float(np.linalg.norm(project_dual(cones, -e))) if len(e) else 0.0


def middles(cones: Sequence[Cone], sizes: Rows) -> Rows:
    """A point in the middle of every cone, as far inside as its rows are long: 0 for equations."""
    out = np.zeros(len(sizes))
    for cone, rows in blocks(cones):
        if cone.kind == NONNEGATIVE:
            out[rows] = sizes[rows]
        elif cone.kind == SECOND_ORDER:
            out[rows.start] = sizes[rows].max()
        elif cone.kind == SEMIDEFINITE:
            out[rows] = sizes[rows].max() * _triangle_of(np.eye(cone.order))
        elif cone.kind in OF_THREE:
            out[rows] = sizes[rows].max() * np.array([-1.0, 1.0, 1.0] if cone.share is None else [1.0, 1.0, 0.0])
    return out


def _second_order(v: Rows) -> Rows:
    t, w = v[0], v[1:]
    size = np.linalg.norm(w)
    if size <= t:
        return v
    if size <= -t:
        return np.zeros_like(v)
    return np.concatenate([[1.0], w / size]) * 0.5 * (t + size)


def _second_order_slope(v: Rows) -> Float[np.ndarray, "rows rows"]:
    t, w = v[0], v[1:]
    size = np.linalg.norm(w)
    if size <= t:
        return np.eye(len(v))
    if size <= -t:
        return np.zeros((len(v), len(v)))
    unit = w / size
    inner = (1 + t / size) * np.eye(len(w)) - t / size * np.outer(unit, unit)
    return 0.5 * np.block([[np.ones((1, 1)), unit[None]], [unit[:, None], inner]])


def _matrix(v: Rows, order: int) -> Float[np.ndarray, "order order"]:
    return (triangle(order).T @ v).reshape(order, order)


def _triangle_of(matrix: np.ndarray) -> Rows:
    return triangle(len(matrix)) @ np.ravel(matrix, order="F")


def _semidefinite_slope(v: Rows, order: int) -> Float[np.ndarray, "rows rows"]:
    values, vectors = np.linalg.eigh(_matrix(v, order))
    plus = np.maximum(values, 0.0)
    gap = values[:, None] - values[None]
    with np.errstate(all="ignore"):
        quotient = np.where(np.abs(gap) > 0, (plus[:, None] - plus[None]) / gap, (values > 0)[:, None])
    i, j = np.indices((order, order)).reshape(2, -1)
    pairs = seen_by(vectors, i, j)
    return np.asarray(pairs.T @ (quotient.reshape(-1, 1) * pairs))


# --- exponential and power cones -------------------------------------------------------------------------------------

NEAR = 1e-7  # of a multiplier and of a ray, up to which they are orthogonal
LEAST, MOST = 1e-300, 1e150  # of the number that is looked for

Three = Float[np.ndarray, "3"]
Slope = Float[np.ndarray, "3 3"]


def _nearest_exponential(v: Three) -> tuple[Three, Slope]:
    """The nearest point of the exponential cone, and its derivative; where it has none, that of one side."""
    x, y, z = (float(part) for part in v)
    inside = z > 0 and x <= y * np.log(z / y) if y > 0 else y == 0 and x <= 0 <= z
    if inside:
        return v, np.eye(3)
    if (z < 0 and np.log(x) + y / x <= 1 + np.log(-z)) if x > 0 else (x == 0 and y <= 0 and z <= 0):
        return np.zeros(3), np.zeros((3, 3))
    if x <= 0 and y <= 0:
        return np.array([x, 0.0, max(z, 0.0)]), np.diag([1.0, 0.0, float(z > 0)])

    def parts(rho: float) -> tuple[float, float]:  # v = a (rho, 1, e^rho) + b (1, 1 - rho, -e^-rho)
        size = rho * rho - rho + 1
        return ((rho - 1) * x + y) / size, (x - rho * y) / size

    def miss(rho: float) -> float:
        a, b = parts(rho)
        if rho > 0:
            return a - b * np.exp(-2 * rho) - z * np.exp(-rho)
        return a * np.exp(2 * rho) - b - z * np.exp(rho)

    ends = 1 - y / x if x else np.nan, x / y if y else np.nan  # where a and b vanish
    low = np.fmax(ends[0], ends[1] if y < 0 else np.nan) if x > 0 else -MOST
    high = np.fmin(ends[1], ends[0] if x < 0 else np.nan) if y > 0 else MOST
    rho = _root(miss, low, high)
    (a, b), fall = parts(rho), np.exp(-abs(rho))
    rises = rho > 0
    third = [1.0, -(fall**2), a + b * fall**2] if rises else [fall**2, -1.0, a * fall**2 + b]
    change = np.linalg.solve([[rho, 1.0, a], [1.0, 1 - rho, -b], third], np.diag([1.0, 1.0, fall]))  # of (a, b, rho)
    last = (
        np.array([0.0, 0.0, 1.0]) + fall * (change[1] - b * change[2]) if rises else fall * (change[0] + a * change[2])
    )
    point = np.array([a * rho, a, z + b * fall if rises else a * fall])
    return point, np.array([rho * change[0] + a * change[2], change[0], last])


def _nearest_power(v: Three, share: float) -> tuple[Three, Slope]:
    """The same of the power cone."""
    own, size, sign = v[:2], abs(float(v[2])), np.sign(v[2])
    shares = np.array([share, 1 - share])
    if (own >= 0).all() and np.prod(own**shares) >= size:
        return v, np.eye(3)
    if (own <= 0).all() and np.prod((-own / shares) ** shares) >= size:
        return np.zeros(3), np.zeros((3, 3))
    if size == 0.0:
        return np.append(np.maximum(own, 0.0), 0.0), np.diag([*(own > 0).astype(float), 0.0])

    def roots(r: float) -> tuple[Any, Any]:
        root = np.sqrt(own**2 + 4 * shares * r * (size - r))
        long = root + np.abs(own)
        return np.where(own > 0, 0.5 * long, 2 * shares * r * (size - r) / np.where(long > 0, long, 1.0)), root

    def miss(r: float) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(r) - shares @ np.log(roots(r)[0]))

    r = _root(miss, LEAST * size, size * (1 - 1e-16))
    point, root = roots(r)
    across = shares / (point * root)
    moved = np.append(shares / root, sign * r * (shares @ across)) / (1 / r - (size - 2 * r) * (shares @ across))
    along = (shares / root)[:, None] * ((size - 2 * r) * moved + np.array([0.0, 0.0, sign * r]))
    along[:, :2] += np.diag(point / root)
    return np.append(point, sign * r), np.vstack([along, sign * moved])


def _root(rising: Any, low: float, high: float) -> float:
    """Where a function that rises vanishes, between ends that may be far away."""
    if low == -MOST:
        low = _beyond(lambda step: high - step, rising, -1.0)
    if high == MOST:
        high = _beyond(lambda step: low + step, rising, 1.0)
    if not rising(low) < 0:
        return low
    return float(brentq(rising, low, high, xtol=1e-300, rtol=1e-15, maxiter=2_000)) if rising(high) > 0 else high


def _beyond(at: Any, rising: Any, sign: float) -> float:
    step = 1.0
    while sign * rising(at(step)) < 0 and step < MOST:
        step *= 2.0
    return float(at(step))


def rays_left(kind_share: float | None, z: Three) -> list[Three]:
    """The rays that span the face of the cone on which a multiplier z, not 0, vanishes; of a power cone where a share is given."""
    first, second = np.eye(3)[:2]
    edges = [-first, np.eye(3)[2]] if kind_share is None else [first, second]
    inner: list[Three] = []
    if kind_share is None and z[0] < 0 < z[2]:
        rho = float(np.log(-z[0] / z[2]))
        inner.append(np.array([rho, 1.0, np.exp(rho)]))
    if kind_share is not None and z[0] > 0 < z[1]:
        x, y = kind_share / z[0], (1 - kind_share) / z[1]
        inner.append(np.array([x, y, -np.sign(z[2]) * x**kind_share * y ** (1 - kind_share)]))
    for some in ([ray / np.linalg.norm(ray) for ray in inner], edges):
        found = [ray for ray in some if float(z @ ray) <= NEAR * float(np.linalg.norm(z))]
        if found:
            return found
    return []

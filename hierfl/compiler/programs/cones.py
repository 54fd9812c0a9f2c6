"""Cones and rows: which there are, the projections on their duals, and the derivatives of these, as one matrix for all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.programs.cones_of_three import nearest_exponential, nearest_power

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


def triangle(order: int) -> np.ndarray:
    """The matrix that takes vec(S) to the upper triangle by columns, off-diagonal entries times sqrt(2), S made symmetric."""
    columns, rows = np.tril_indices(order)
    place, picked = np.arange(len(rows)), np.zeros((len(rows), order * order))
    scale = np.where(rows == columns, 0.5, np.sqrt(0.5))
    picked[place, rows + order * columns] += scale
    picked[place, columns + order * rows] += scale
    return picked


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
    return nearest_exponential(v) if cone.share is None else nearest_power(v, cone.share)


def dual_slope(cones: Sequence[Cone], v: Rows) -> Float[np.ndarray, "rows rows"]:
    """The derivative of ``project_dual`` at v; where there are several, one of them."""
    out = np.zeros((len(v), len(v)))
    for cone, rows in blocks(cones):
        if cone.kind == ZERO:
            out[rows, rows] = np.eye(cone.size)
        elif cone.kind == NONNEGATIVE:
            out[rows, rows] = np.diag((v[rows] > 0).astype(float))
        elif cone.kind == SECOND_ORDER:
            out[rows, rows] = _second_order_slope(v[rows])
        elif cone.kind in OF_THREE:
            out[rows, rows] = np.eye(3) - nearest_of_three(cone, -v[rows])[1]
        else:
            out[rows, rows] = _semidefinite_slope(v[rows], cone.order)
    return out


def distance(cones: Sequence[Cone], e: Rows) -> float:
    """How far e is from K."""
    return float(np.linalg.norm(project_dual(cones, -e))) if len(e) else 0.0


def inside(cones: Sequence[Cone], e: Float[np.ndarray, "k rows"]) -> Bool[np.ndarray, " k"]:
    """Which of many are in K."""
    within = np.ones(len(e), bool)
    for cone, rows in blocks(cones):
        part = e[:, rows]
        if cone.kind == ZERO:
            within &= (part == 0).all(axis=1)
        elif cone.kind == NONNEGATIVE:
            within &= (part >= 0).all(axis=1)
        elif cone.kind == SECOND_ORDER:
            within &= np.linalg.norm(part[:, 1:], axis=1) <= part[:, 0]
        else:
            within &= np.array([distance([cone], one) == 0.0 for one in part], bool)
    return within


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
    basis = triangle(order)
    columns = []
    for unit in np.eye(len(v)):
        inner = vectors.T @ (basis.T @ unit).reshape(order, order) @ vectors
        columns.append(_triangle_of(vectors @ (quotient * inner) @ vectors.T))
    return np.array(columns).T

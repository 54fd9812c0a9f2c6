"""Projections on the dual cones of a standard form, and their derivatives: one matrix for all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.standard_form import NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE, ZERO, Cone, triangle

Rows = Float[np.ndarray, " rows"]


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
    return out


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
    """A point in the middle of every cone, as far inside as its rows are long: 1, (1, 0, ..., 0) or the identity; 0 for equations."""
    out = np.zeros(len(sizes))
    for cone, rows in blocks(cones):
        if cone.kind == NONNEGATIVE:
            out[rows] = sizes[rows]
        elif cone.kind == SECOND_ORDER:
            out[rows.start] = sizes[rows].max()
        elif cone.kind == SEMIDEFINITE:
            out[rows] = sizes[rows].max() * _triangle_of(np.eye(cone.order))
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


def second_order_projections(v: Float[np.ndarray, "k m"]) -> Float[np.ndarray, "k m"]:
    """The nearest points of the second-order cone."""
    t, w = v[:, :1], v[:, 1:]
    size = np.linalg.norm(w, axis=1, keepdims=True)
    mean = 0.5 * (t + size)
    between = np.concatenate([mean, mean * w / np.where(size > 0, size, 1.0)], axis=1)
    return np.where(size <= t, v, np.where(size <= -t, 0.0, between))


def second_order_slopes(v: Float[np.ndarray, "k m"]) -> Float[np.ndarray, "k m m"]:
    """The derivatives of that, of several one."""
    t, w = v[:, :1, None], v[:, 1:]
    size = np.linalg.norm(w, axis=1)[:, None, None]
    unit = w / np.where(size > 0, size, 1.0)[:, 0]
    outer = unit[:, :, None] * unit[:, None, :]
    between = np.full((len(v), v.shape[1], v.shape[1]), 0.5)
    between[:, 0, 1:], between[:, 1:, 0] = 0.5 * unit, 0.5 * unit
    between[:, 1:, 1:] = 0.5 * ((1.0 + t / np.where(size > 0, size, 1.0)) * (np.eye(w.shape[1]) - outer) + outer)
    return np.where(size <= t, np.eye(v.shape[1]), np.where(size <= -t, 0.0, between))

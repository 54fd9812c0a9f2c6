"""Where the compiler looks at a lower level to see what holds everywhere.

What holds at a generic point holds almost everywhere, and what holds at a special one (a corner of X, clients that happen to be
alike, a parameter that is 0 today) need not. Generic points are random convex combinations: of points of X, of all clients'
parameters, of samples, of values that a ``cp.Parameter`` may take; so they keep signs, bounds and definiteness.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from cvxpy import Parameter

from hierfl.compiler.data.tables import Population, Table
from hierfl.compiler.expressions.program import NO_ROWS, Rows
from hierfl.compiler.oracles import Oracles

CLIENTS = 4  # that are looked at as they are
ROWS = 64  # of a table in an average
SCALARS = 10_000_000  # of a sample in a combination
FAR = 1e3  # where bounds are looked at that are infinite


class Probe(NamedTuple):
    """A point of X, the constants of an owner of y, and rows for the averages."""

    x: Any  # of NumPy, (n,)
    own: dict[int, Any]
    rows: Rows


def actual_probes(oracles: Oracles, from_data: bool) -> list[Probe]:
    """Some clients (in sample scope: a row of each) with today's parameters, at generic points of X."""
    clients = oracles.clients_in_numpy()
    chosen = np.unique(np.linspace(0, clients.size - 1, CLIENTS).astype(int))
    points = _points_of_x(oracles, len(chosen), seed=0)
    return [_of_client(oracles, clients, int(client), x, from_data) for client, x in zip(chosen, points)]


def generic_probes(oracles: Oracles, from_data: bool) -> tuple[Probe, Probe]:
    """Two points without anything special in common."""
    clients = oracles.clients_in_numpy()
    first, second = (
        Probe(x, *_generic_owner(oracles, clients, np.random.default_rng(seed), from_data))
        for seed, x in enumerate(_points_of_x(oracles, 2, seed=1))
    )
    return first, second


def _points_of_x(oracles: Oracles, count: int, seed: int) -> list[np.ndarray]:
    """Combinations of projections, in pairs on opposite sides of one: X may lie far from 0."""
    rng, own = np.random.default_rng(seed), oracles.clients_in_numpy().party(0).environment

    def project(x: np.ndarray) -> np.ndarray:
        return oracles.upper_set.point_near(x, own)

    middle = project(rng.standard_normal(oracles.upper.size))
    moves = (1.0 + np.abs(middle)) * rng.standard_normal((2, middle.size))
    ends = np.array([project(middle + sign * move) for move in moves for sign in (1.0, -1.0)])
    return [weights @ ends for weights in rng.dirichlet(np.ones(len(ends)), count)]


def _of_client(oracles: Oracles, clients: Population, client: int, x: np.ndarray, from_data: bool) -> Probe:
    own = dict(clients.party(client).environment)
    if oracles.scope == "sample":
        drawn = clients.some_rows(client, 1, oracles.lower_samples).values
        return Probe(x, own | {leaf: value[0] for leaf, value in drawn.items()}, NO_ROWS)
    return Probe(x, own, clients.some_rows(client, ROWS, oracles.lower_samples) if from_data else NO_ROWS)


def _generic_owner(
    oracles: Oracles, clients: Population, rng: np.random.Generator, from_data: bool
) -> tuple[dict[int, Any], Rows]:
    weights = rng.dirichlet(np.ones(clients.size))
    parameters = {p.id: p for p in oracles.declaration.roles.parameters}
    own = {leaf: _generic_value(parameters[leaf], value, rng) for leaf, value in clients.public.items()}
    own |= {leaf: np.tensordot(weights, values, axes=1) for leaf, values in clients.parameters.items()}
    tables = [table for table in clients.tables if set(table.samples) & set(oracles.lower_samples)]
    if oracles.scope == "sample":
        for table in tables:
            own |= _combined(table, rng)
        return own, NO_ROWS
    if not from_data:
        return own, NO_ROWS
    values: dict[int, Any] = {}
    for table in tables:
        values |= table.rows(rng.integers(table.size, size=ROWS))
    weight: dict[int, Any] = {leaf: np.full(ROWS, 1.0 / ROWS) for leaf in values}
    counts = {leaf: table.counts[0] for table in tables for leaf in table.samples}
    return own, Rows(values, weight, counts)


def _combined(table: Table, rng: np.random.Generator) -> dict[int, np.ndarray]:
    """A combination of all rows, or of as many as are quickly read."""
    row = sum(int(np.prod(column.shape[1:], dtype=int)) for column in table.values.values())
    most = max(1, SCALARS // max(1, row))
    chosen = np.arange(table.size) if table.size <= most else rng.choice(table.size, most)
    weights = rng.dirichlet(np.ones(chosen.size))
    return {leaf: np.tensordot(weights, np.asarray(rows), axes=1) for leaf, rows in table.rows(chosen).items()}


def _generic_value(parameter: Parameter, value: Any, rng: np.random.Generator) -> np.ndarray:
    """A value with the parameter's attributes, near today's; bounds that are infinite today are finite ones far away."""
    today = np.asarray(value)
    today = np.where(np.isinf(today), np.copysign(FAR, today), today)

    def allowed(candidate: np.ndarray) -> np.ndarray:
        if parameter.attributes.get("sparsity"):
            pattern = np.zeros(today.shape, bool)
            pattern[parameter.sparse_idx] = True
            return np.where(pattern, candidate, 0.0)
        nearest = parameter.project(candidate)
        return np.asarray(nearest.toarray() if sp.issparse(nearest) else nearest, dtype=float).reshape(today.shape)

    moves = (1.0 + np.abs(today)) * rng.standard_normal((2, *today.shape))
    ends = np.array([allowed(today + sign * move) for move in moves for sign in (1.0, -1.0)])
    return np.tensordot(rng.dirichlet(np.ones(len(ends))), ends, axes=1)

"""How far f is from the expectation that it stands for, where distributions are replaced by nodes.

A value over a distribution is a function of the weights of its nodes (``hierfl.compiler.data.evaluation_nodes``). Each part of a
rule is a rule too: f is computed with the weights of one part at a time, and the spread of the ``PARTS`` values estimates the
error. Divided by the root of their number for Sobol sequences, that is the standard error of the mean of independent replicates,
and the parts, which fill each other's gaps, do no worse. In one dimension the parts are interleaved: the error of a jump or a
kink falls at least as their number, by which the spread is divided there. What the tails would add beyond the outermost
nodes is extrapolated as a geometric series. Where kinks take the integrals of a law (``hierfl.compiler.expressions.law_kinks``), what
those were seen to miss is added, by its effect on f. All of this is estimated, none of it proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.evaluation_nodes import PARTS, QUADRATURE, RULES, SOBOL, NodeRoles
from hierfl.compiler.data.tables import Data, Population, Table
from hierfl.compiler.lower_level.certificate import TOLERANCE, Evaluation
from hierfl.errors import ExpectationWarning, warn
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import double_precision

ROUNDING = 1e-13  # relative: to what SciPy's quantiles are right
ENDLESS = 0.5  # the ratio of a tail's last band to the one before from which it is not seen to end
INFINITE_VARIANCE = 0.5  # the tail index from which it is infinite
FEWEST = 20  # values beyond those that are alike, from which on they have a tail index
DIRECTION_SEED = 0


class ExpectationError(NamedTuple):
    """An estimate of |f - its expectation|, infinite where ``doubt`` says why none can be given.

    At most ``points`` nodes stand for a party's distributions, by the rules named in ``rule``.
    """

    error: float
    points: int
    rule: str
    doubt: str


@dataclass(frozen=True, eq=False)
class LawTable:
    """A table that stands for distributions, and what its rows contribute to f, each weighted as in its party's mean.

    ``party`` (rows,) holds them; ``terms`` (kinds, rows) are what a row adds to its party's mean in f with y as it is, times the
    party's weight, and, where y depends on the table, what it adds to the lower mapping along a fixed direction.
    """

    table: Table
    roles: NodeRoles
    party: Int[np.ndarray, " rows"]
    weights: Float[np.ndarray, " rows"]
    terms: Float[np.ndarray, "kinds rows"]

    @classmethod
    def of(cls, table: Table, terms: Float[Array, "parties kinds rows"]) -> LawTable:
        """A table with the terms of every party, which are as many as the longest of them has rows."""
        assert table.roles is not None
        party = np.repeat(np.arange(table.counts.size), table.counts)
        own = [np.asarray(each)[:, :count] for each, count in zip(terms, table.counts)]
        return cls(table, table.roles, party, np.asarray(table.weights), np.concatenate(own, axis=1))

    @property
    def names(self) -> str:
        return ", ".join(sample.name() for sample in self.table.quantiles.laws[0]) if self.table.quantiles else ""

    @property
    def moves_y(self) -> bool:
        return len(self.terms) > 1

    def is_of(self, rule: str) -> np.ndarray:
        return self.roles.rule == RULES.index(rule)

    def of_part(self, rule: str, part: int) -> Float[np.ndarray, " rows"]:
        """The weights with this part of the rule in the place of all its nodes."""
        inside = self.is_of(rule) & (self.roles.part == part)
        share = np.bincount(self.party, self.weights * inside)[self.party]
        return np.where(self.is_of(rule), self.weights * inside / np.where(share > 0, share, 1.0), self.weights)

    def tail_bands(self) -> Iterator[tuple[float, float]]:
        """(size of the outermost band, ratio to the one before it) for each kind of term and side of a party's laws."""
        for term in self.terms:
            size = self.weights * np.abs(term)
            noise = 64 * np.finfo(float).eps * np.bincount(self.party, size)
            for side in (-1, 1):
                last, before = (np.bincount(self.party, size * (self.roles.band == side * k)) for k in (2, 1))
                seen = last > noise
                yield from zip(last[seen], last[seen] / np.maximum(before[seen], np.finfo(float).tiny))


@double_precision
def expectation_error(compiled: CompiledProblem, x: np.ndarray, evaluation: Evaluation) -> ExpectationError | None:
    """Estimate the error at x, where f has been evaluated; None without distributions. Warns of doubts, once a problem."""
    tables = _law_tables(compiled, x, evaluation)
    if not tables:
        return None
    points = max(int(np.max(law.table.counts)) for law in tables)
    used = [rule for rule in RULES if any(law.is_of(rule).any() for law in tables)]
    if doubt := _doubt(compiled, tables):
        return ExpectationError(float("inf"), points, " and ".join(used), doubt)
    value = _Reweighted(compiled, x, evaluation, tables)
    spreads = [_spread(value, rule) for rule in used if rule in (QUADRATURE, SOBOL)]
    size = sum(float(law.weights @ np.abs(law.terms[0])) for law in tables)
    size += abs(float(evaluation.value)) if any(law.moves_y for law in tables) else 0.0
    error = float(np.linalg.norm(spreads)) + _beyond(value) + ROUNDING * size
    if any(law.table.integrals is not None for law in tables):
        error += abs(value([law.weights for law in tables], tilted=True) - float(evaluation.value))
    if not np.isfinite(error):
        return ExpectationError(float("inf"), points, " and ".join(used), "f was not found on some of the points alone")
    return ExpectationError(float(error), points, " and ".join(used), "")


@double_precision
def warn_of_doubts(compiled: CompiledProblem, x: np.ndarray, evaluation: Evaluation) -> None:
    """Look once whether f has an expectation to speak of, at the first x where it is evaluated."""

    compiled.programs.keep("looked for endless tails", lambda: _doubt(compiled, _law_tables(compiled, x, evaluation)))


def _doubt(compiled: CompiledProblem, tables: list[LawTable]) -> str:
    """Why the nodes cannot tell the expectation, in words, of which it warns once; empty where they can."""
    doubt = next(filter(None, map(_doubt_of, tables)), "")
    said = f"E: {doubt}. Its values are those of the points, not of the law."
    if doubt:
        compiled.programs.keep("warned of endless tails", lambda: warn(ExpectationWarning(said)))
    return doubt


def _doubt_of(law: LawTable) -> str:
    if not np.isfinite(law.terms).all():
        return f"what {law.names} contributes is not finite on some of the points: the expectation may be infinite"
    if any(ratio > ENDLESS for _, ratio in law.tail_bands()):
        return f"what the tails of {law.names} contribute does not die out: the expectation may be infinite"
    held = [slice(start, start + count) for start, count in zip(law.table.offsets, law.table.counts)]
    by_sobol = [own for own in held if law.roles.rule[own.start] == RULES.index(SOBOL)]
    index = max((_tail_index(term[own]) for own in by_sobol for term in law.terms), default=0.0)
    what = "variance" if index < 1 else "expectation"
    heavy = f"what {law.names} contributes is heavy-tailed (tail index {index:.2g}): its {what} may be infinite"
    return heavy if index >= INFINITE_VARIANCE else ""


# --- f with other weights ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Reweighted:
    """f at x as a function of the weights of nodes: linear in those that only the upper level averages over."""

    compiled: CompiledProblem
    x: np.ndarray
    evaluation: Evaluation
    tables: list[LawTable]

    def __call__(self, weights: list[Float[np.ndarray, " rows"]], tilted: bool = False) -> float:
        """With the integrals of laws ``tilted``, as far off as they were seen to be, where that is asked."""
        if not any(law.moves_y or law.table.integrals is not None for law in self.tables):
            moved = sum(float((new - law.weights) @ law.terms[0]) for law, new in zip(self.tables, weights))
            return float(self.evaluation.value) + moved
        new = {id(law.roles): jnp.asarray(each) for law, each in zip(self.tables, weights)}

        def renewed(table: Table) -> Table:
            if table.roles is None:
                return table
            integrals = table.integrals.tilted() if tilted and table.integrals is not None else table.integrals
            return replace(table, weights=new[id(table.roles)], integrals=integrals)

        def side(population: Population) -> Population:
            return replace(population, tables=tuple(map(renewed, population.tables)))

        data = self.compiled.data()
        changed = Data(side(data.clients), None if data.server is None else side(data.server))
        return float(self.compiled.exact.compiled_evaluation(self.x, changed, None, tolerance=TOLERANCE).value)


def _spread(value: _Reweighted, rule: str) -> float:
    """The error by the spread of f over the parts of a rule."""
    values = [value([law.of_part(rule, part) for law in value.tables]) for part in range(PARTS)]
    return float(np.std(values, ddof=1)) / (np.sqrt(PARTS) if rule == SOBOL else PARTS)


def _beyond(value: _Reweighted) -> float:
    """What lies beyond the outermost nodes: r / (1 - r) times the outermost band, r its ratio to the band before it."""
    bands = [(law, list(law.tail_bands())) for law in value.tables]
    if not any(law.moves_y for law, _ in bands):
        return sum(size * ratio / (1 - ratio) for _, each in bands for size, ratio in each)
    ratio = max((ratio for _, each in bands for _, ratio in each), default=0.0)
    without = [np.where(np.abs(law.roles.band) == 2, 0.0, law.weights) for law, _ in bands]
    outermost = abs(float(value.evaluation.value) - value(without))
    return outermost * ratio / (1 - ratio)


# --- what rows contribute ----------------------------------------------------------------------------------------------


def _law_tables(compiled: CompiledProblem, x: np.ndarray, evaluation: Evaluation) -> list[LawTable]:
    laws = [side.tables[place] for side, place in _with_roles(compiled.static_data)]
    if not laws:
        return []

    def row_terms(x: Array, y: Array | None, data: Data) -> list[Array]:
        return [_terms(compiled, x, y, data, *each) for each in _with_roles(data)]

    program = compiled.programs.keep("row terms", lambda: quick_jit(row_terms))
    y = None if evaluation.solution is None else jnp.asarray(evaluation.solution.y)
    return [LawTable.of(*each) for each in zip(laws, program(jnp.asarray(x), y, compiled.data()))]


def _with_roles(data: Data) -> list[tuple[Population, int]]:
    """(side, place) of each such table."""
    sides = [side for side in (data.clients, data.server) if side is not None]
    return [(side, place) for side in sides for place, table in enumerate(side.tables) if table.roles is not None]


def _terms(
    compiled: CompiledProblem, x: Array, y: Array | None, data: Data, side: Population, place: int
) -> Float[Array, "parties kinds rows"]:
    """The derivatives, in the weights of rows, of what a table alone adds to f and, where y depends on it, to the lower mapping."""
    table, at_server = side.tables[place], side is data.server
    per_row = compiled.scope == "sample" and not at_server
    if per_row and y is not None and place == compiled.row_table(side):
        table = replace(table, values={**table.values, **compiled.lower.split(y)})
    value = compiled.server_value if at_server else compiled.client_value
    direction = jax.random.normal(jax.random.key(DIRECTION_SEED), (compiled.lower.size,), x.dtype)

    def of_party(index: Array) -> Array:
        party = replace(side, tables=(table,)).party(index)
        rows = party.chunk(0, 0, table.longest)._replace(laws=None)
        known = y is not None and not per_row and (compiled.scope == "federation" or not at_server)
        own_y = y[0 if compiled.scope == "federation" else index] if known and y is not None else None

        def added(weights: Array) -> Array:
            weighed = rows._replace(weights=dict.fromkeys(rows.weights, weights))
            upper = party.weight * value(x, own_y, party.environment, weighed)
            if own_y is None or at_server or not set(table.samples) & set(compiled.lower_samples):
                return upper[None]
            force, start = jnp.zeros(0, x.dtype), 0
            for stage in compiled.exact.stages:  # each level at x and the answers before it
                at, end = jnp.concatenate([x, own_y[:start]]), start + stage.oracles.lower.size
                part = stage.oracles.operator(at, own_y[start:end], party.environment, weighed)
                force, start = jnp.concatenate([force, part]), end
            return jnp.stack([upper, direction @ force])

        return jax.jacrev(added)(rows.weights[table.samples[0]])

    return side.one_by_one(of_party)


def _tail_index(sample: Float[np.ndarray, " n"]) -> float:
    """How heavy the tail of a sample is: the index k of the generalised Pareto law that fits its largest distances from the median.

    The variance is infinite from k = 1/2 on, the mean from k = 1 on; -infinity where few of these differ. The fit is that
    of Zhang and Stephens (2009), used to judge Monte Carlo means as Vehtari, Simpson, Gelman, Yao and Gabry do (2024).
    """
    away = np.sort(np.abs(sample - np.median(sample)))
    largest = int(min(0.2 * away.size, 3 * np.sqrt(away.size)))
    excess = away[-largest:] - away[-largest - 1]
    if not np.isfinite(excess).all():
        return float("inf")
    excess = excess[excess > 1e-12 * away[-1]]
    return _pareto_index(excess) if excess.size >= FEWEST else float("-inf")


def _pareto_index(excess: Float[np.ndarray, " n"]) -> float:
    """The index of a generalised Pareto law fitted to positive values in order: a mean over likely scales of the estimate for each."""
    count = excess.size
    grid = 20 + int(np.sqrt(count))
    quartile = excess[int(count / 4 + 0.5) - 1]
    scales = 1 / excess[-1] + (1 - np.sqrt(grid / (np.arange(grid) + 0.5))) / (3 * quartile)
    index = np.mean(np.log1p(-scales[:, None] * excess), axis=1)
    likelihood = count * (np.log(-scales / index) - index - 1)
    weights = 1 / np.sum(np.exp(np.clip(likelihood - likelihood[:, None], None, 700.0)), axis=1)
    return float(np.mean(np.log1p(-np.sum(weights * scales) * excess)))

"""Points and weights that stand for the laws of one table wherever a value over them is exact: the same ones at every x.

A law with few values is summed over them. One other scalar (beside such laws) is integrated by the midpoint rule after a
change of variables: t = u / 2 + s(u) / 2, u the probability and s that of double-exponential quadrature (Takahasi and Mori,
1974). Half the nodes are spread evenly over the probability, as kinks ask for, and half of them crowd towards the ends,
so that smooth integrands converge exponentially, unbounded ones too. More scalars take a scrambled Sobol sequence
(unscrambled ones start at the corner 0 and are biased).

Where the density of a law of one scalar jumps the rule begins anew, and there is a node of no weight: so does what is told of the
law between nodes.

Every rule but a sum falls into ``PARTS`` rules of the same kind, by whose spread its error is estimated.
Laws are frozen ``scipy.stats`` distributions: their quantiles, and keyed draws by them, are here as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from hierfl.compiler.expressions.law_kinks import density_jumps, has_density
from hierfl.errors import DataError
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.keyed_random import uniforms
from hierfl.language.sample import Sample

FIRST_STREAM = 1_000  # of the first table; row numbers have the streams below


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantiles:
    """Inverse CDFs of all parties for the samples of one table.

    ``laws[party][sample]`` is the frozen distribution, compared by identity. Uniform and normal laws are drawn inside the compiled program;
    any other family is called on the host, by party index.
    """

    laws: tuple[dict[Sample, Any], ...] = field(metadata={"static": True})

    def draw(self, key: jax.Array, table: int, step: Any, size: int, index: Any) -> dict[int, jax.Array]:
        """``size`` independent rows of the party with this (traced) index: sample id -> (size, *shape)."""
        rows = {}
        for place, sample in enumerate(self.laws[0]):
            stream = FIRST_STREAM * (table + 1) + place
            rows[sample.id] = self._transform(sample, uniforms(key, stream, step, (size, *sample.shape)), index)
        return rows

    def _transform(self, sample: Sample, uniform: jax.Array, index: Any) -> jax.Array:
        laws = [law[sample] for law in self.laws]
        families = {getattr(getattr(law, "dist", None), "name", None) for law in laws}
        if families <= {"uniform", "norm"} and len(families) == 1:
            location, scale = (jnp.asarray(part)[index] for part in _location_scale(laws, sample.shape))
            standard = uniform if families == {"uniform"} else jax.scipy.special.ndtri(uniform)
            return location + scale * standard

        def on_host(points: np.ndarray, party: np.ndarray) -> np.ndarray:
            return quantiles(laws[int(party)], np.asarray(points, float))

        return call_on_host(on_host, uniform.shape, uniform.dtype, uniform, index)


def quantiles(law: Any, beyond: np.ndarray, above: np.ndarray | None = None) -> np.ndarray:
    """Where a frozen law has a probability of ``beyond`` below, or, where that is asked, above; for a joint normal through its covariance."""
    one = law if hasattr(law, "ppf") else stats.norm
    found = one.ppf(beyond) if above is None else np.where(above, one.isf(beyond), one.ppf(beyond))
    return np.asarray(found, float) if one is law else _joint_normal(law, found)


def _joint_normal(law: Any, standard: np.ndarray) -> np.ndarray:
    if np.ndim(law.cov) != 2:
        factor = np.sqrt(law.cov)
    else:
        try:
            factor = np.linalg.cholesky(law.cov)
        except np.linalg.LinAlgError:  # singular, which allow_singular=True allows
            sizes, axes = np.linalg.eigh(law.cov)
            factor = axes * np.sqrt(np.maximum(sizes, 0.0))
    return np.asarray(law.mean + standard @ np.transpose(factor), dtype=float)


def _location_scale(laws: Sequence[Any], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    standard = np.array([0.25, 0.75])
    base = laws[0].dist.ppf(standard)
    locations, scales = [], []
    for law in laws:
        low, high = (np.broadcast_to(law.ppf(np.full(shape, p)), shape) for p in standard)
        scale = (high - low) / (base[1] - base[0])
        scales.append(scale)
        locations.append(low - scale * base[0])
    return np.stack(locations), np.stack(scales)


PARTS = 8
LEAST_IN_PIECE = 16  # points between two jumps of a density: of each part two
GAP = 1e-13  # the probability between jumps that is none
LEAST_POINTS = 64  # of a rule, so that each part has eight
TAIL = 1e-16  # the probability beyond the outermost nodes, on either side
SEARCHED = 1e4  # whole numbers, up to which SciPy's search for quantiles is waited for: it tries them in tens
CROWDED = 0.5  # share of the nodes that follow double-exponential quadrature
SEED = 20240607
SUM, QUADRATURE, SOBOL = "summation", "quadrature", "a scrambled Sobol sequence"
RULES = (SUM, QUADRATURE, SOBOL)


@dataclass(frozen=True)
class EvaluationNodes:
    """The rule of one party's table: ``values`` ``{sample id: (n, *shape)}`` with ``weights`` that sum to one, by one of ``RULES``.

    ``part`` says which of the ``PARTS`` rules a node belongs to; ``band`` is 2 for the outermost nodes of a tail that was cut off, 1 for those before
    them, negative on the left, else 0; ``jump`` says whether the density of a law of one scalar jumps there.
    """

    values: dict[int, np.ndarray]
    weights: Float[np.ndarray, " n"]
    part: Int[np.ndarray, " n"]
    band: Int[np.ndarray, " n"]
    jump: Bool[np.ndarray, " n"]
    rule: str


@dataclass(frozen=True, eq=False)
class NodeRoles:
    """What rows that stand for distributions are in the rules they belong to; arrays (rows,), as in ``EvaluationNodes``.

    ``rule`` indexes ``RULES``.
    """

    rule: np.ndarray
    part: np.ndarray
    band: np.ndarray
    jump: np.ndarray

    @classmethod
    def of(cls, nodes: Sequence[EvaluationNodes]) -> NodeRoles:
        """Those of all parties, one after another."""
        each = ((np.full(one.weights.size, RULES.index(one.rule)), one.part, one.band, one.jump) for one in nodes)
        return cls(*map(np.concatenate, zip(*each)))


class Nodes(NamedTuple):
    """Nodes of one scalar; the fields are those of :class:`EvaluationNodes`."""

    values: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]
    part: Int[np.ndarray, " n"]
    band: Int[np.ndarray, " n"]


@np.errstate(all="ignore")  # SciPy divides by zero on its way to quantiles of some laws
def evaluation_nodes(laws: Mapping[Sample, Any], points: int, holder: str, table: int) -> EvaluationNodes:
    """The rule for independent laws, with at most ``points`` nodes; no two tables of two holders share a scramble.

    Raises ``DataError`` for a discrete law whose outer quantiles SciPy does not find.
    """
    for sample, law in laws.items():
        if _is_too_long(law, sample.shape):
            raise DataError(
                f"sample {sample.name()!r} of {holder}: SciPy searches for quantiles of {law.dist.name} step by step, "
                f"and its tail is too long for that. Write rows that are drawn from it, law.rvs(size=1000), or its first "
                f"values with their probabilities, stats.rv_discrete(values=...)()."
            )
    scalars = {sample: _few_values(law, sample.shape, points) for sample, law in laws.items()}
    continuous = [sample for sample, each in scalars.items() if each is None]
    combinations = math.prod(nodes.weights.size for each in scalars.values() for nodes in each or ())
    if sum(sample.size for sample in continuous) > 1 or combinations > points // (LEAST_POINTS if continuous else 1):
        return _sobol(laws, points, np.random.default_rng((SEED, table, *holder.encode())))
    if len(laws) == 1 and continuous and has_density(laws[continuous[0]]):
        return _of_density(continuous[0], laws[continuous[0]], points)
    for sample in continuous:
        scalars[sample] = [_quadrature(laws[sample], sample.shape, points // combinations)]
    return _product({sample: each for sample, each in scalars.items() if each}, QUADRATURE if continuous else SUM)


def _is_too_long(law: Any, shape: tuple[int, ...]) -> bool:
    """Whether a quantile that is asked for lies more than 10,000 whole numbers from the median, and SciPy has no formula for it."""
    family = getattr(law, "dist", None)
    if not isinstance(family, stats.rv_discrete) or hasattr(family, "pk"):
        return False
    if type(family)._ppf is not stats.rv_discrete._ppf:  # which is the search
        return False
    middle = law.ppf(np.full(shape, 0.5))
    return bool(((law.sf(middle + SEARCHED) > TAIL) | (law.cdf(middle - SEARCHED) > TAIL)).any())


def _of_density(sample: Sample, law: Any, points: int) -> EvaluationNodes:
    """The rule of one scalar with a density: between its jumps a rule each, and a node of no weight at every one."""
    nodes = _quadrature(law, sample.shape, points)
    places, first, last = density_jumps(law, nodes.values), nodes.values[0], nodes.values[-1]
    inner = places[(places > first) & (places < last)]
    if inner.size and inner.size < points // LEAST_IN_PIECE:
        nodes = _quadrature(law, sample.shape, points, np.ravel(law.cdf(inner)))
    at = np.searchsorted(nodes.values, inner)
    jump = np.insert(np.zeros(nodes.values.size, bool), at, True)
    jump[0], jump[-1] = jump[0] | (places <= first).any(), jump[-1] | (places >= last).any()
    values, weights, part, band = (np.insert(column, at, new) for column, new in zip(nodes, (inner, 0.0, 0, 0)))
    return EvaluationNodes({sample.id: values.reshape(-1, *sample.shape)}, weights, part, band, jump, QUADRATURE)


def _few_values(law: Any, shape: tuple[int, ...], limit: int) -> list[Nodes] | None:
    """The values of a discrete law with their probabilities, for each scalar; None for others, and for too many values."""
    if not isinstance(getattr(law, "dist", None), stats.rv_discrete):
        return None
    if hasattr(law.dist, "pk"):  # given by a list of values
        share = np.ravel(law.dist.pk)
        listed = np.ravel(law.dist.xk).reshape(-1, *(1,) * len(shape))
        values = np.broadcast_to(listed + (law.support()[0] - listed[0]), (share.size, *shape))
        probability = np.repeat(share[:, None], math.prod(shape), axis=1)
    else:
        first = law.ppf(np.full(shape, TAIL))
        if (law.sf(first + limit) > TAIL).any():
            return None
        last = law.isf(np.full(shape, TAIL))
        if not (np.isfinite(first).all() and np.isfinite(last).all()) or np.max(last - first) >= limit:
            return None
        values = first + np.arange(np.max(last - first) + 1).reshape(-1, *(1,) * len(shape))
        probability = law.pmf(values).reshape(len(values), -1)
    listed_all = hasattr(law.dist, "pk")  # which SciPy has found to add up to one, to 1e-8
    if len(values) > limit or (not listed_all and np.abs(probability.sum(axis=0) - 1).max() > 1e-9):
        return None
    columns = values.reshape(len(values), -1).T, probability.T
    if listed_all:  # none are left out
        return [_listed(value, weight, np.inf, -np.inf) for value, weight in zip(*columns)]
    ends = (np.broadcast_to(np.asarray(end, float), shape).ravel() for end in law.support())
    return [_listed(value, weight, low, high) for value, weight, low, high in zip(*columns, *ends)]


def _listed(values: np.ndarray, probability: np.ndarray, low: float, high: float) -> Nodes:
    """The nodes of listed values; a side has a tail only where values beyond them were left out."""
    values, probability = values[probability > 0], probability[probability > 0]
    below, above = -np.log10(np.cumsum(probability)), -np.log10(np.cumsum(probability[::-1])[::-1])
    band = _bands(above) if high > values[-1] else np.zeros(values.size, int)
    if low < values[0]:
        band -= _bands(below)
    return Nodes(values, probability / probability.sum(), np.zeros(values.size, int), band)


def _quadrature(law: Any, shape: tuple[int, ...], points: int, cuts: Sequence[float] | np.ndarray = ()) -> Nodes:
    """Nodes for a law of one scalar; ``cuts``, the probabilities below places where its density jumps, part them into rules."""
    tail, above, weights, part = _in_pieces(np.concatenate([[0.0], cuts, [1.0]]), points)
    sized = (tail.size, *shape)
    values = quantiles(law, tail.reshape(sized), above.reshape(sized)).reshape(-1)
    known = np.isfinite(values)  # of some laws SciPy knows no quantiles so far out
    depth = np.where(above, 1, -1) * -np.log10(tail)
    band = _bands(depth[known]) - _bands(-depth[known])
    return Nodes(values[known], weights[known] / weights[known].sum(), part[known], band)


def _in_pieces(edges: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(probability beyond a node, whether that is above it, weight, part) of rules between edges, each with its share of the points."""
    pieces = []
    for low, high in pairwise(edges):
        mass = high - low
        if not mass > GAP:
            continue
        count = points if edges.size == 2 else PARTS * round(max(points * mass, LEAST_IN_PIECE) / PARTS)
        place, weights = _midpoint_rule(count)
        inner = _tail(place)
        below = low + mass * np.where(place > 0, 1.0 - inner, inner)
        beyond = (1.0 - high) + mass * np.where(place > 0, inner, 1.0 - inner)
        tail = np.minimum(below, beyond)
        pieces.append((tail, beyond < below, mass * weights, np.arange(count) % PARTS))
    tail, above, weights, part = (np.concatenate(column) for column in zip(*pieces))
    return tail, above, weights, part


def _bands(depth: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Where nodes lie in a tail whose probability beyond a node is 10^-depth.

    2 for the last quarter of its orders of magnitude; 1 for the quarter before it, or the next node where that has none; 0 for
    the rest.
    """
    deepest = np.max(depth)
    next_band = min(0.5 * deepest, np.max(depth, where=depth <= 0.75 * deepest, initial=-np.inf))
    return np.where(depth > 0.75 * deepest, 2, np.where(depth >= next_band, 1, 0))


def _tail(v: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The probability beyond the node v, on its side."""
    return 1.0 / (1.0 + np.exp(np.pi * np.sinh(np.abs(v))))


def _midpoint_rule(points: int) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Nodes v and weights of the midpoint rule in t; the probability at v is 1 / (1 + exp(-pi sinh v))."""
    end = np.arcsinh(np.log(1 / TAIL) / np.pi)

    def t(v: np.ndarray) -> np.ndarray:
        return (1 - CROWDED) / (1 + np.exp(-np.pi * np.sinh(v))) + CROWDED * (v + end) / (2 * end)

    first, last = t(np.array([-end, end]))
    wanted = first + (last - first) * (np.arange(points) + 0.5) / points
    low, high = np.full(points, -end), np.full(points, end)
    for _ in range(60):  # t increases: bisection
        middle = 0.5 * (low + high)
        before = t(middle) < wanted
        low, high = np.where(before, middle, low), np.where(before, high, middle)
    v = 0.5 * (low + high)
    density = np.pi * np.cosh(v) * _tail(v) * (1 - _tail(v))  # du / dv
    weights = density / ((1 - CROWDED) * density + CROWDED / (2 * end))
    return v, weights / weights.sum()


def _product(scalars: Mapping[Sample, Sequence[Nodes]], rule: str) -> EvaluationNodes:
    """Every combination of the scalars' nodes; a combination is as far out as its outermost scalar."""
    factors = [nodes for each in scalars.values() for nodes in each]
    index = np.indices([nodes.weights.size for nodes in factors]).reshape(len(factors), -1)
    bands = np.stack([nodes.band[k] for nodes, k in zip(factors, index)])
    columns = iter([nodes.values[k] for nodes, k in zip(factors, index)])
    values = {
        sample.id: np.stack([next(columns) for _ in each], axis=-1).reshape(-1, *sample.shape)
        for sample, each in scalars.items()
    }
    return EvaluationNodes(
        values,
        np.prod([nodes.weights[k] for nodes, k in zip(factors, index)], axis=0),
        np.sum([nodes.part[k] for nodes, k in zip(factors, index)], axis=0),
        np.take_along_axis(bands, np.argmax(np.abs(bands), axis=0)[None], axis=0)[0],
        np.zeros(bands.shape[1], bool),
        rule,
    )


def _sobol(laws: Mapping[Sample, Any], points: int, generator: np.random.Generator) -> EvaluationNodes:
    """A scrambled Sobol sequence, whose consecutive eighths are Sobol nets too."""
    sizes = [sample.size for sample in laws]
    uniform = stats.qmc.Sobol(sum(sizes), scramble=True, rng=generator).random(points)
    smallest = float(np.finfo(float).eps) / 4
    pieces = np.split(np.clip(uniform, smallest, 1 - smallest), np.cumsum(sizes)[:-1], axis=1)
    values = {
        sample.id: quantiles(law, piece.reshape(points, *sample.shape))
        for (sample, law), piece in zip(laws.items(), pieces)
    }
    part = np.arange(points) * PARTS // points
    band, jump = np.zeros(points, int), np.zeros(points, bool)
    return EvaluationNodes(values, np.full(points, 1.0 / points), part, band, jump, SOBOL)

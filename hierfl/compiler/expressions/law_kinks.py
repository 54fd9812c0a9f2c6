"""Where the integrand of ``E`` has kinks in a sample that is one scalar, and what they add to its average over a law's nodes.

At a switch that crosses zero at d = r the integrand g(d) leaves its smooth continuation by J1 (d - r)+ + J2 (d - r)+^2 / 2, J1 and J2 the jumps
of its first two derivatives there. Nodes average that by a staircase in r; what the law's integrals (``LawIntegrals``) have beyond
it is added, so that the average is as smooth as the law's. E(d - y)+ has the derivative -P(d > y) in y then, as it should.

``density_jumps`` finds where the density of a law jumps, within its support and at the ends of that: answers have kinks there, and what
is told of the law between nodes begins anew. ``LawIntegrals`` say how far beyond a point r a law lies: E(d - r)+ and
E(d - r)+^2 / 2, which are smooth in r. Nodes that stand for a law (``evaluation_nodes``) make a staircase of a kink's average; these integrals mend it. Between two nodes the
probability beyond r is a polynomial of degree 5, by its values and densities at both and halfway, and is integrated as it stands. A
row of a table carries what holds from its node to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.expressions.leaf import Leaf
from jax import Array
from jaxtyping import Bool, Float
from numpy.polynomial.polynomial import polyval

from hierfl.analysis.enclosure import NOTHING_KNOWN, Enclosure
from hierfl.atoms.table import holds_code, row_of
from hierfl.language.expectation import is_affine_in
from hierfl.language.sample import Sample

LEAST_JUMP = 1e-6  # of the density beside it: a jump that is one
# in which an interval is looked at, down to neighbouring numbers; what is narrower than one may go unseen
PARTS, ROUNDS = 12, 15
STEEP = 3  # times the usual change over such a part: that of a jump
SHRUNK = 0.16  # of the change over a part: over a part of that, a smooth density's is smaller
NARROW = 1e6  # units of rounding: in intervals that are no wider a jump is not told from a steep density


def has_density(law: Any) -> bool:
    """Whether SciPy tells the density and the probability beyond a point of a law."""
    return all(hasattr(law, part) for part in ("sf", "pdf", "ppf"))


@np.errstate(all="ignore")  # the density may be infinite at an end
def density_jumps(law: Any, nodes: Float[np.ndarray, " n"]) -> Float[np.ndarray, " jumps"]:
    """The places where the density jumps, ascending: between ascending nodes, and at the ends of the support beside the outermost."""

    def density(places: np.ndarray) -> np.ndarray:
        return np.nan_to_num(np.asarray(law.pdf(places), float), posinf=np.finfo(float).max)

    low, high, before = nodes[:-1], nodes[1:], np.zeros(0)
    wide = high - low > NARROW * np.spacing(np.maximum(np.abs(low), np.abs(high)))
    parts = np.stack([low[wide], high[wide]])
    least = LEAST_JUMP * density(parts).max(axis=0)
    for step in range(ROUNDS):
        edges = np.linspace(parts[0], parts[1], PARTS + 1)
        change = np.abs(np.diff(density(edges), axis=0))
        smooth = SHRUNK * before if step else STEEP * np.median(change, axis=0)
        part, interval = np.nonzero((change > smooth) & (change > least))
        parts, before = np.stack([edges[part, interval], edges[part + 1, interval]]), change[part, interval]
        least = least[interval]
    gap = np.median(high - low) * np.array([1, -1])
    beside = nodes[[0, -1]] + np.sign(gap) * np.maximum(1e-10 * np.abs(gap), 4 * np.spacing(np.abs(nodes[[0, -1]])))
    ends = np.ravel(law.support())[density(beside) > LEAST_JUMP * np.median(density(nodes))]
    return np.unique(np.concatenate([parts.mean(axis=0), ends[np.isfinite(ends)]]))


ORDER = np.arange(6)  # of the powers of a polynomial
KNOWN_AT = np.array([0.0, 0.5, 1.0])  # of the way to the next node
TRIED_AT = np.array([0.25, 0.75])
BUMP = np.array([0, 0, 16, -32, 16, 0])  # 16 s^2 (1 - s)^2: the shape that errors between nodes are taken to have
START, END, LOW, GAP, LEAST, MOST, SQUARE, EXCESS = range(8)  # the columns of a table


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LawIntegrals:
    """What rows tell of ``LOW`` <= r < ``END``, (rows, columns), and by how much that was seen to miss the law.

    With s = (r - START) / (END - START), E(d - r)+ has the coefficients in s from column ``EXCESS`` on, and ``SQUARE`` is
    E(d - START)+^2 / 2. ``LOW`` is the start, and minus infinity for a law's first node; nothing lies beyond its last. ``GAP``,
    ``LEAST`` and ``MOST`` are the same for all rows of a law: the median width, the first and the last node.
    """

    table: Any
    missed: Any

    @classmethod
    def of(cls, law: Any, nodes: Float[np.ndarray, " n"], jump: Bool[np.ndarray, " n"]) -> LawIntegrals:
        """Those of one law, whose nodes ascend; at those marked ``jump`` its density does."""
        end = np.append(nodes[1:], nodes[-1])
        beyond, missed = _between_nodes(law, nodes, end - nodes, jump)
        known = [nodes, end, np.append(-np.inf, nodes[1:])]
        known += [np.full(nodes.size, one) for one in (np.median(np.diff(nodes)), nodes[0], nodes[-1])]
        integrals = [_integrals(each, end - nodes) for each in (beyond, missed[:, None] * BUMP)]
        return cls(np.column_stack([*known, integrals[0]]), np.pad(integrals[1], ((0, 0), (len(known), 0))))

    @classmethod
    def joined(cls, parts: Sequence[LawIntegrals]) -> LawIntegrals:
        return jax.tree.map(lambda *columns: np.concatenate(columns), *parts)

    def tilted(self) -> LawIntegrals:
        """The same, off by what they were seen to miss."""
        return replace(self, table=self.table + self.missed)


def excess(table: Float[Array, "rows columns"], r: Float[Array, " k"]) -> tuple[Array, Array]:
    """(E(d - r)+, E(d - r)+^2 / 2), as far as these rows tell, which ascend; all of a law's tell it."""
    row = table[jnp.maximum(jnp.searchsorted(table[:, START], r, side="right", method="compare_all") - 1, 0)].T
    ahead, width = r - row[START], row[END] - row[START]
    place = jnp.where(ahead >= 0, ahead, 0.0) / jnp.where(width > 0, width, 1.0)
    first, second = jnp.zeros_like(r), jnp.zeros_like(r)
    for power in range(len(ORDER), -1, -1):
        first, second = first * place + row[EXCESS + power], second * place + row[EXCESS + power] / (power + 1)
    before = jnp.where(ahead < 0, -ahead, 0.0)  # to the first node, where all is ahead
    squared = row[SQUARE] - width * place * second + before * (first + before / 2)
    told = (r >= row[LOW]) & (r < row[END])
    return jnp.where(told, first + before, 0.0), jnp.where(told, squared, 0.0)


def _between_nodes(
    law: Any, nodes: np.ndarray, width: np.ndarray, jump: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n coefficients"], Float[np.ndarray, " n"]]:
    """The coefficients of the probability beyond a point, of a straight line where the density jumps on the way; what they miss."""
    places, tried = (nodes[:, None] + width[:, None] * at for at in (KNOWN_AT, TRIED_AT))
    beyond = np.asarray(law.sf(places), float)
    inward = np.maximum(1e-10 * width, 4 * np.spacing(np.abs(nodes)))  # the density there is that of one side
    places[:, 0] += np.where(jump, inward, 0.0)
    places[:, -1] -= np.where(np.append(jump[1:], False), inward, 0.0)
    values = KNOWN_AT[:, None] ** ORDER
    slopes = ORDER * KNOWN_AT[:, None] ** np.maximum(ORDER - 1, 0)
    with np.errstate(invalid="ignore", over="ignore"):  # a density may be infinite at an end
        known = np.hstack([beyond, -width[:, None] * np.asarray(law.pdf(places), float)])
        smooth = np.linalg.solve(np.vstack([values, slopes]), known.T).T
        line = np.pad(beyond[:, :1], ((0, 0), (0, 5))) + np.outer(beyond[:, 2] - beyond[:, 0], ORDER == 1)
        there = np.asarray(law.sf(tried), float)
        missed = [np.abs(polyval(TRIED_AT, one.T) - there).max(axis=1) for one in (smooth, line)]
    fits = missed[0] <= missed[1]
    return np.where(fits[:, None], smooth, line), np.where(fits, *missed)


def _integrals(beyond: Float[np.ndarray, "n coefficients"], width: np.ndarray) -> Float[np.ndarray, "n columns"]:
    """E(d - r)+^2 / 2 at every node, and the coefficients of E(d - r)+ between it and the next."""
    pieces = width[:, None] * beyond / (ORDER + 1)
    first = _sums_from_here(pieces.sum(axis=1))
    second = _sums_from_here(width * (first - (pieces / (ORDER + 2)).sum(axis=1)))
    return np.column_stack([second, first, -pieces])


def _sums_from_here(parts: np.ndarray) -> np.ndarray:
    """For each entry, the sum of it and those after it."""
    return np.cumsum(parts[::-1])[::-1]


CLOSE = 1e-5  # of the gap between nodes: how near to a kink slopes are compared, and kinks are one
ROUNDING = 32  # units of rounding of a kink's place, which that is no less than


@dataclass(frozen=True)
class CrossedAtom:
    """An atom within an integrand with its switches that are affine in the sample, as one vector, and the sample's coefficients in them.

    ``rates`` (k,) are numbers, none zero; ``own`` (k, entries) says which entries of the atom change with a switch. An atom whose
    branches change at such places alone is ``smoothed`` on average.
    """

    atom: Any
    switch: Any
    rates: Float[np.ndarray, " k"]
    own: Bool[np.ndarray, "k entries"]
    smoothed: bool


@dataclass(frozen=True)
class LawKinks:
    """The crossed atoms of an integrand over one scalar sample; a ``straight`` one is affine between kinks: no second derivative jumps."""

    sample: Sample
    crossed: tuple[CrossedAtom, ...]
    straight: bool

    @classmethod
    def of(cls, integrand: Any) -> LawKinks | None:
        """Those of an integrand; None where there are none, or code of the user's is in it, which may have others."""
        samples = {p for p in integrand.parameters() if isinstance(p, Sample)}
        sample = next(iter(samples)) if len(samples) == 1 else None
        if sample is None or sample.size != 1 or holds_code(integrand):
            return None
        crossed = {id(one.atom): one for one in _crossed(integrand, sample)}
        return cls(sample, tuple(crossed.values()), _is_straight(integrand, sample)) if crossed else None

    def added(
        self,
        integrand: Callable[[Array, Mapping[int, Array]], tuple[Array, ...]],
        places: Sequence[int],
        values: Sequence[Array],
        nodes: tuple[Array, Array],
        law: Array,
    ) -> Array:
        """What the law's average has beyond that of nodes (values, weights).

        ``integrand`` maps d to its value and those of the atoms, which are at ``places``: there they may be given. ``values`` are
        those of the switches at d = 0, ``law`` the table of its integrals.
        """
        numbers = {place: number for number, place in enumerate(places)}  # equal atoms are at one place
        at_zero = jnp.concatenate([values[number] for number in numbers.values()])
        precision = at_zero.dtype  # of the computation that asks, whatever that of the law's numbers
        table, d, weights = (jnp.asarray(part, precision) for part in (law, *nodes))
        rates = jnp.asarray(np.concatenate([self.crossed[number].rates for number in numbers.values()]), precision)
        r, size = -at_zero / rates, jnp.abs(rates)
        missed, missed_square = (told - seen for told, seen in zip(excess(table, r), _of_nodes(d, weights, r)))
        close = jnp.maximum(CLOSE * table[0, GAP], ROUNDING * jnp.finfo(precision).eps * jnp.abs(r))
        near = jnp.abs(r[:, None] - r) < close[:, None]  # which kinks are where each one is: their jumps are seen together

        def at(d: Array, given: Mapping[int, Array]) -> tuple[Array, ...]:
            return integrand(jnp.reshape(d, self.sample.shape), given)

        def jump(function: Callable[[Array], Array], mine: slice) -> Array:
            sides = (r[mine] + way * close[mine] for way in (1, -1))
            above, below = (jax.vmap(function)(jnp.clip(side, table[0, LEAST], table[0, MOST])) for side in sides)
            return above - below

        added, end = jnp.zeros((), precision), 0
        for place, number in numbers.items():
            one, start = self.crossed[number], end
            end += len(one.rates)
            mine = slice(start, end)

            def atom(d: Array, number: int = number) -> Array:
                return at(d, {})[1 + number]

            def bent(d: Array, change: Array, place: int = place, atom: Callable[[Array], Array] = atom) -> Array:
                return jax.jvp(lambda value: at(d, {place: value})[0], (atom(d),), (change,))[1]

            together = near[mine, mine] & (one.own @ one.own.T)  # where several change an entry, each has its share by its rate
            own = np.reshape(one.own, (-1, *one.atom.shape), order="F")
            change = jump(_slope(atom), mine) * jnp.asarray(own, precision)
            shares = missed[mine] * size[mine] / (together @ size[mine])
            added = added + jnp.tensordot(shares, jax.vmap(bent)(r[mine], change), axes=1)
        if self.straight:
            return added
        curvature = jump(_slope(_slope(lambda d: at(d, {})[0])), slice(None))
        return added + jnp.tensordot(missed_square / jnp.sum(near, axis=1), curvature, axes=1)


def _slope(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda d: jax.jvp(function, (d,), (jnp.ones_like(d),))[1]


def _of_nodes(values: Array, weights: Array, r: Array) -> tuple[Array, Array]:
    """The averages of (d - r)+ and (d - r)+^2 / 2 over nodes."""
    ahead = jnp.ravel(values) - r[:, None]
    beyond = jnp.where(ahead > 0, ahead, 0.0)
    return beyond @ weights, beyond**2 @ weights / 2


def crossed_atoms(integrand: Any, laws: frozenset[int]) -> dict[int, Any]:
    """The atoms, by id, all of whose branches change at single values of a sample among ``laws``: the mean is smooth there."""
    kinks = LawKinks.of(integrand)
    known = () if kinks is None or kinks.sample.id not in laws else kinks.crossed
    return {id(one.atom): one.atom for one in known if one.smoothed}


def _crossed(expression: Any, sample: Sample) -> Iterator[CrossedAtom]:
    """Every atom below an expression with switches that the sample crosses at single values.

    What an atom that is steep somewhere (a root, a logarithm) makes of a kink is no jump of a slope: below those none is told.
    """
    row = row_of(expression)
    affine, others = ([] if make is None else make(expression) for make in (row.crossings, row.switches))
    switches = affine or others
    rates = [(switch, _rate(switch, sample)) for switch in switches]
    crossed = [(switch, np.ravel(rate, order="F")) for switch, rate in rates if rate is not None]
    if crossed:
        own = [_own_entries(expression, switch) for switch, _ in crossed]
        vector = cp.hstack([cp.vec(switch, order="F") for switch, _ in crossed])
        whole = all(rate is not None or _is_number(switch) for switch, rate in rates)
        yield CrossedAtom(expression, vector, np.concatenate([rate for _, rate in crossed]), np.concatenate(own), whole)
    elif not (isinstance(expression, (Leaf, AffAtom)) or expression.is_pwl() or _is_gentle(expression)):
        return
    for argument in getattr(expression, "args", ()):
        yield from _crossed(argument, sample)


def _own_entries(atom: Any, switch: Any) -> Bool[np.ndarray, "k entries"]:
    """Which entries of an atom change with each of a switch: of an elementwise one each its own."""
    apart = isinstance(atom, Elementwise) and atom.shape == switch.shape
    return np.eye(atom.size, dtype=bool) if apart else np.ones((switch.size, atom.size), bool)


def _is_gentle(atom: Any) -> bool:
    """Whether an atom has a locally Lipschitz gradient wherever its arguments may be."""
    rule = row_of(atom).smooth
    return rule is not None and rule(
        atom, [not _is_number(argument) for argument in atom.args], Enclosure(NOTHING_KNOWN)
    )


def _rate(switch: Any, sample: Sample) -> np.ndarray | None:
    """The sample's coefficients in a switch, where they are numbers and none is zero."""
    rate = _coefficients(switch, sample)
    return rate if rate is not None and rate.size and np.isfinite(rate).all() and (rate != 0).all() else None


def _coefficients(expression: Any, sample: Sample) -> np.ndarray | None:
    """The derivative in the sample, with the expression's shape; None where it is not known to be a number."""
    if expression is sample:
        return np.ones(expression.shape)
    moved = [argument for argument in expression.args if _mentions(argument, sample)]
    if not moved:
        return np.zeros(expression.shape)
    scaled = isinstance(expression, DivExpression) or row_of(expression).product
    inner: list[Any] = []
    for argument in expression.args:
        others = np.zeros(argument.shape) if not scaled else _dense(argument.value) if _is_number(argument) else None
        inner.append(_coefficients(argument, sample) if _mentions(argument, sample) else others)
    if not is_affine_in(expression, moved) or any(rate is None for rate in inner):
        return None
    return np.reshape(_dense(expression.numeric(inner)), expression.shape, order="F")


def _is_straight(expression: Any, sample: Sample) -> bool:
    """Whether an expression is affine in the sample between kinks."""
    moved = [argument for argument in expression.args if _mentions(argument, sample)]
    bent = moved and not is_affine_in(expression, moved) and (isinstance(expression, AffAtom) or not expression.is_pwl())
    return not bent and all(_is_straight(argument, sample) for argument in moved)


def _mentions(expression: Any, sample: Sample) -> bool:
    return any(parameter is sample for parameter in expression.parameters())


def _is_number(expression: Any) -> bool:
    return not expression.variables() and not expression.parameters()


def _dense(value: Any) -> np.ndarray:
    return np.asarray(value.toarray() if sp.issparse(value) else value, float)

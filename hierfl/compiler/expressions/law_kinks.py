"""Where the integrand of ``E`` has kinks in a sample that is one scalar, and what they add to its average over a law's nodes.

At a switch that crosses zero at d = r the integrand g(d) leaves its smooth continuation by J1 (d - r)+ + J2 (d - r)+^2 / 2, J1 and J2 the jumps
of its first two derivatives there. Nodes average that by a staircase in r; what the law's integrals (``LawIntegrals``) have beyond
it is added, so that the average is as smooth as the law's. E(d - y)+ has the derivative -P(d > y) in y then, as it should.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.expressions.leaf import Leaf
from jax import Array

from hierfl.analysis.enclosure import NOTHING_KNOWN, Enclosure
from hierfl.atoms.table import row_of
from hierfl.compiler.expressions.law_integrals import LawIntegrals
from hierfl.language.sample import Sample

CLOSE = 1e-5  # of the gap between nodes: how near to a kink slopes are compared, and kinks are one
ROUNDING = 32  # units of rounding of a kink's place, which that is no less than


@dataclass(frozen=True)
class LawKinks:
    """Atoms within an integrand, with switches that are affine in its only sample, and its coefficients in them: numbers, none zero.

    ``sizes`` says how many entries the switches of each atom have; ``rates`` (entries,) has the coefficients, one atom after another,
    and ``entries`` (entries,) which entry of its atom a switch is of, where that is one alone; -1 elsewhere.
    """

    sample: Sample
    atoms: tuple[Any, ...]
    switches: tuple[Any, ...]
    sizes: tuple[int, ...]
    rates: np.ndarray
    entries: np.ndarray
    straight: bool  # between kinks the integrand is affine: there are no jumps of second derivatives

    @classmethod
    def of(cls, integrand: Any) -> LawKinks | None:
        """Those of an integrand over one scalar sample; None where there are none, or code of the user's is in it, which may have others."""
        sample = smoothing_sample(integrand)
        found = {} if sample is None else _crossings(integrand, sample)
        if sample is None or not found:
            return None
        switches = [switch for _, crossed in found.values() for switch, _ in crossed]
        rates = [np.concatenate([np.ravel(rate, order="F") for _, rate in crossed]) for _, crossed in found.values()]
        atoms, sizes = tuple(atom for atom, _ in found.values()), tuple(len(rate) for rate in rates)
        entries = [_entries(atom, switch) for atom, crossed in found.values() for switch, _ in crossed]
        straight = _is_straight(integrand, sample)
        return cls(sample, atoms, tuple(switches), sizes, np.concatenate(rates), np.concatenate(entries), straight)

    def added(
        self,
        integrand: Callable[[Array, Mapping[int, Array]], tuple[Array, ...]],
        places: Sequence[int],
        values: Sequence[Array],
        nodes: tuple[Array, Array],
        law: LawIntegrals,
    ) -> Array:
        """What the law's average has beyond that of nodes (values, weights).

        ``integrand`` maps d to its value and those of the atoms, which are at ``places``: there they may be given. ``values`` are
        those of the switches at d = 0.
        """
        at_zero = jnp.concatenate([jnp.ravel(value, order="F") for value in values])
        precision = at_zero.dtype  # of the computation that asks, whatever that of the law's numbers
        law, (d, weights) = law.ready(precision), (jnp.asarray(part, precision) for part in nodes)
        r = -at_zero / self.rates.astype(precision)
        missed, missed_square = (
            told - seen for told, seen in zip(law.excess(r), _excess_of_nodes(d, weights, r, law.middle[0]))
        )
        close = jnp.maximum(CLOSE * law.gap[0], ROUNDING * jnp.finfo(precision).eps * jnp.abs(r))

        def jump(function: Callable[[Array], Array], r: Array, distance: Array) -> Array:
            above, below = (jnp.clip(r + way * distance, law.least[0], law.most[0]) for way in (1, -1))
            return jax.vmap(function)(above) - jax.vmap(function)(below)

        def at(d: Array, given: Mapping[int, Array]) -> tuple[Array, ...]:
            return integrand(jnp.reshape(d, self.sample.shape), given)

        added, end = jnp.zeros((), precision), 0
        counted: set[int] = set()  # equal atoms are at one place
        for number, (place, size) in enumerate(zip(places, self.sizes)):
            mine = slice(end, end + size)
            end += size
            if place in counted:
                continue
            counted.add(place)

            def atom(d: Array, number: int = number) -> Array:
                return at(d, {})[1 + number]

            def beyond_atom(d: Array, change: Array, place: int = place, number: int = number) -> Array:
                return jax.jvp(lambda value: at(d, {place: value})[0], (atom(d, number),), (change,))[1]

            change = jump(_slope(atom), r[mine], close[mine]) * self._own(number, mine).astype(precision)
            bent = jax.vmap(beyond_atom)(r[mine], change)
            added = added + jnp.tensordot(missed[mine] * self._shares(r[mine], mine, close[mine]), bent, axes=1)
        if self.straight:
            return added
        curvature = jump(_slope(_slope(lambda d: at(d, {})[0])), r, close)
        together = jnp.sum(_near(r, close), axis=1)
        return added + jnp.tensordot(missed_square / together, curvature, axes=1)

    def _own(self, number: int, mine: slice) -> np.ndarray:
        """1 for the entries of an atom that change with each of its switches, (switches, *shape of the atom); else 0."""
        shape, entries = self.atoms[number].shape, self.entries[mine]
        one = np.eye(self.atoms[number].size)[np.maximum(entries, 0)]
        flat = np.where((entries >= 0)[:, None], one, 1.0)
        return np.stack([np.reshape(row, shape, order="F") for row in flat])

    def _shares(self, r: Array, mine: slice, close: Array) -> Array:
        """What of the jump that is seen at each of an atom's switches is its own: where several change at once, each by its rate."""
        entries, rates = self.entries[mine], jnp.asarray(np.abs(self.rates[mine]), r.dtype)
        seen = _near(r, close) & (entries[:, None] == entries)
        return rates / (seen @ rates)


def _slope(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda d: jax.jvp(function, (d,), (jnp.ones_like(d),))[1]


def _near(r: Array, close: Array) -> Array:
    """Which kinks are where each one is: their jumps are seen together."""
    return jnp.abs(r[:, None] - r) < close[:, None]


def _excess_of_nodes(values: Array, weights: Array, r: Array, middle: Array) -> tuple[Array, Array]:
    """The averages of (d - r)+ and (d - r)+^2 / 2 over nodes, from their moments about the middle beyond r."""
    values = jnp.reshape(values, (-1,))
    beyond = jnp.asarray(values > r[:, None], r.dtype)
    d, r = values - middle, r - middle
    share, first, second = (beyond @ jnp.column_stack([weights, weights * d, weights * d**2])).T
    return first - r * share, (second - 2 * r * first + r**2 * share) / 2


def smoothing_sample(integrand: Any) -> Sample | None:
    """The sample whose law makes an average of kinks smooth; None where there is none."""
    return None if _is_opaque(integrand) else _only_scalar(integrand)


def _only_scalar(integrand: Any) -> Sample | None:
    """The only sample of an integrand, where that is one scalar."""
    samples = {p for p in integrand.parameters() if isinstance(p, Sample)}
    return next(iter(samples)) if len(samples) == 1 and all(s.size == 1 for s in samples) else None


def crossed_atoms(integrand: Any, laws: frozenset[int]) -> dict[int, Any]:
    """The atoms, by id, all of whose branches change at single values of a sample among ``laws``: the mean is smooth there."""
    kinks = LawKinks.of(integrand)
    if kinks is None or kinks.sample.id not in laws:
        return {}
    return {id(atom): atom for atom in kinks.atoms if _is_crossed(atom, kinks.sample)}


def _is_crossed(atom: Any, sample: Sample) -> bool:
    """Whether all places where an atom changes branch are at single values of the sample, whatever else moves."""
    return all(_rate(switch, sample) is not None for switch in _switches(atom) if not _is_number(switch))


def _switches(atom: Any) -> list[Any]:
    """What changes sign wherever an atom changes its branch, affine in the arguments where there is such."""
    row = row_of(atom)
    crossings = [] if row.crossings is None else row.crossings(atom)
    return crossings or ([] if row.switches is None else row.switches(atom))


def _is_gentle(atom: Any) -> bool:
    """Whether an atom has a locally Lipschitz gradient wherever its arguments may be."""
    rule = row_of(atom).smooth
    return rule is not None and rule(
        atom, [not _is_number(argument) for argument in atom.args], Enclosure(NOTHING_KNOWN)
    )


def _crossings(expression: Any, sample: Sample) -> dict[int, tuple[Any, list[tuple[Any, np.ndarray]]]]:
    """Every atom below an expression whose switches the sample crosses at single values, with those and the sample's coefficients; by id.

    What an atom that is steep somewhere (a root, a logarithm) makes of a kink is no jump of a slope: below those none is told.
    """
    found: dict[int, tuple[Any, list[tuple[Any, np.ndarray]]]] = {}
    rates = [(switch, _rate(switch, sample)) for switch in _switches(expression)]
    crossed = [(switch, rate) for switch, rate in rates if rate is not None]
    if crossed:
        found[id(expression)] = expression, crossed
    elif not (isinstance(expression, (Leaf, AffAtom)) or expression.is_pwl() or _is_gentle(expression)):
        return found
    for argument in getattr(expression, "args", ()):
        found |= _crossings(argument, sample)
    return found


def _entries(atom: Any, switch: Any) -> np.ndarray:
    """Which entry of an elementwise atom each entry of a switch is of; -1 where it is not of one."""
    own = isinstance(atom, Elementwise) and atom.shape == switch.shape
    return np.arange(switch.size) if own else np.full(switch.size, -1)


def _rate(switch: Any, sample: Sample) -> np.ndarray | None:
    """The sample's coefficients in a switch, where they are numbers and none is zero."""
    rate = _coefficients(switch, sample)
    return rate if rate is not None and rate.size and np.isfinite(rate).all() and (rate != 0).all() else None


def _coefficients(expression: Any, sample: Sample) -> np.ndarray | None:
    """The derivative in the sample, with the expression's shape; None where it is not known to be a number."""
    if expression is sample:
        return np.ones(expression.shape)
    if not _mentions(expression, sample):
        return np.zeros(expression.shape)
    if not isinstance(expression, AffAtom):
        return None
    inner = [_coefficients(argument, sample) for argument in expression.args]
    if any(rate is None for rate in inner):
        return None
    if isinstance(expression, DivExpression) or row_of(expression).product:
        moved = [k for k, argument in enumerate(expression.args) if _mentions(argument, sample)]
        others = [k for k in range(len(expression.args)) if k not in moved]
        if len(moved) != 1 or not all(_is_number(expression.args[k]) for k in others):
            return None
        for k in others:
            inner[k] = _dense(expression.args[k].value)
        if isinstance(expression, DivExpression) and moved != [0]:
            return None
    return np.reshape(_dense(expression.numeric(inner)), expression.shape, order="F")


def _is_opaque(expression: Any) -> bool:
    return row_of(expression).opaque or any(map(_is_opaque, getattr(expression, "args", ())))


def _is_straight(expression: Any, sample: Sample) -> bool:
    """Whether an expression is affine in the sample between kinks."""
    if expression is sample or not _mentions(expression, sample):
        return True
    if isinstance(expression, AffAtom):
        factors = sum(_mentions(argument, sample) for argument in expression.args)
        product = isinstance(expression, DivExpression) or row_of(expression).product
        if product and (
            factors > 1 or (_mentions(expression.args[-1], sample) and isinstance(expression, DivExpression))
        ):
            return False
    elif not expression.is_pwl():
        return False
    return all(_is_straight(argument, sample) for argument in expression.args)


def _mentions(expression: Any, sample: Sample) -> bool:
    return any(parameter is sample for parameter in expression.parameters())


def _is_number(expression: Any) -> bool:
    return not expression.variables() and not expression.parameters()


def _dense(value: Any) -> np.ndarray:
    return np.asarray(value.toarray() if sp.issparse(value) else value, float)

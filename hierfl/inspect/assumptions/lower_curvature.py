"""Moduli of the lower level: strong convexity or monotonicity, and smoothness; whether the mapping of an equilibrium is a gradient.

They are the ends of the spectrum of the lower level's Hessian or Jacobian, holder by holder, by intervals where it moves with x or y. With
them those of the clients' upper terms in x, client by client: mu_i and L_i of methods with local gradient steps. Hessians are those of
quadratic bounds (``hierfl.analysis.curvature_bounds``), which are compiled once and multiply vectors for any client (a mean over its rows)
or any single sample. Where no bound is positive, two points of Y(x) are looked for between which the mapping F is not strongly monotone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression

from hierfl.analysis.convexity import convex_where_known
from hierfl.analysis.curvature_bounds import (
    DENSE_LIMIT,
    CurvatureBounds,
    Edge,
    curvature_bounds,
    largest,
    majorant,
    moves_slopes,
    smallest,
)
from hierfl.analysis.enclosure import Enclosure, Known
from hierfl.analysis.hoist import hoist
from hierfl.analysis.lipschitz import ROW_LIMIT, JacobianRows, bounding_jacobians, least_eigenvalue, norm_of
from hierfl.atoms.algebra import addends, depends, nodes_of
from hierfl.atoms.intervals import EPS, Interval, interval_sum
from hierfl.compiler.data.tables import Population
from hierfl.compiler.expressions.program import NO_ROWS, Program, Rows
from hierfl.inspect.assumptions.examination import JACOBIAN_LIMIT, Examination, Holder, Weighted, known_of_all
from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.language.levels import LowerLevel, averages_of
from hierfl.language.player import Nash
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem

Products = Callable[[np.ndarray], np.ndarray]  # of the Hessian with vectors (k, size)


class Spectrum(NamedTuple):
    """mu from below and L from above of one function (None: no bound)."""

    low: Edge | None = None
    high: Edge | None = None


@dataclass(frozen=True, eq=False)
class Curvature:
    """The curvature of ``expression`` in ``variables``, evaluated for holders of data."""

    compiled: CompiledProblem
    expression: cp.Expression
    variables: tuple[cp.Variable, ...]
    known: Known

    @cached_property
    def bounds(self) -> CurvatureBounds:
        return curvature_bounds(self.expression, self.variables, self.known)

    def spectrum(self, holder: Holder) -> Spectrum:
        """Bound the spectrum of the Hessian for one holder (a client, or one of its samples)."""
        return self.mean_spectrum([(1.0, holder)])

    def mean_spectrum(self, holders: Sequence[tuple[float, Holder]]) -> Spectrum:
        """Bound the spectrum of the Hessian of a weighted sum over holders."""
        terms = max((holder.rows for _, holder in holders), default=1)
        low, high, size = None, None, sum(v.size for v in self.variables)
        if self.bounds.lower is not None:
            low = smallest(self._products(self.bounds.lower, holders), size, terms)
            if low is None and convex_where_known(self.expression, self.variables, self.known):
                if self._plain is not None:  # leaving out convex terms can only lower mu
                    low = smallest(self._products(self._plain, holders), size, terms)
                low = low or Edge(0.0, "convex, by CVXPY's rules")
        if self.bounds.upper is not None:
            dominating = None if self._dominating is None else self._products(self._dominating, holders)
            high = largest(self._products(self.bounds.upper, holders), size, terms, dominating)
        return Spectrum(low, high)

    @cached_property
    def _plain(self) -> cp.Expression | None:
        """The terms of the lower bound that no data enter."""
        assert self.bounds.lower is not None
        terms = [t for t in addends(self.bounds.lower) if not any(True for _ in averages_of(t)) and t.variables()]
        return sum(terms[1:], start=terms[0]) if terms else None

    @cached_property
    def _dominating(self) -> cp.Expression | None:
        return None if self.bounds.upper is None else majorant(self.bounds.upper, self.variables)

    def _products(self, expression: cp.Expression, holders: Sequence[tuple[float, Holder]]) -> Products:
        if id(expression) not in self._programs:
            self._programs[id(expression)] = self._compile(expression)
        multiply, used = self._programs[id(expression)], {p.id for p in expression.parameters()}

        def products(vectors: np.ndarray) -> np.ndarray:
            result = np.zeros_like(vectors)
            for weight, holder in holders:
                ends = {p.id: jnp.asarray(end.value(holder.known)) for p, end in self.bounds.ends.items() if p.id in used}
                part = multiply(jnp.asarray(vectors), holder.population, holder.index, holder.own | ends)
                result += weight * np.asarray(part)
            return result

        return products

    @cached_property
    def _programs(self) -> dict[int, Callable[..., jax.Array]]:
        return {}

    def _compile(self, expression: cp.Expression) -> Callable[..., jax.Array]:
        program = Program([expression])
        samples = tuple(p.id for p in expression.parameters() if isinstance(p, Sample))
        starts = np.cumsum([0, *(v.size for v in self.variables)])
        mine = {v.id for v in self.variables}
        others = [v for v in [*self.compiled.upper.variables, *self.compiled.lower.variables] if v.id not in mine]
        zeros = {v.id: np.zeros(v.shape) for v in others}

        def value(flat: jax.Array, own: dict[int, Any], rows: Rows) -> jax.Array:
            decision = {v.id: flat[a:b].reshape(v.shape) for v, a, b in zip(self.variables, starts, starts[1:])}
            return jnp.reshape(program({**zeros, **own, **decision}, rows)[0], ())

        def product(vector: jax.Array, population: Population | None, index: int, own: dict[int, Any]) -> jax.Array:
            def of_rows(rows: Rows) -> jax.Array:
                point = jnp.zeros_like(vector)
                return jax.jvp(lambda flat: jax.grad(value)(flat, own, rows), (point,), (vector,))[1]

            return of_rows(NO_ROWS) if population is None else population.party(index).mean(of_rows, samples)

        @jax.jit
        def products(vectors: jax.Array, population: Population | None, index: int, own: dict[int, Any]) -> jax.Array:
            return jax.lax.map(lambda v: product(v, population, index, own), vectors, batch_size=64)

        return products


@dataclass(frozen=True)
class LowerSpectra:
    """The spectra holder by holder, and ``together`` that of their weighted sum (federation scope).

    ``rule`` says how they are known, ``notes`` what could not be bounded; ``proved`` unless a sample stands for a distribution.
    """

    spectra: tuple[Spectrum, ...]
    together: Spectrum | None
    rule: str
    notes: tuple[str, ...]
    proved: bool


def _hessian_spectra(study: Examination) -> LowerSpectra:
    level = study.below
    known = known_of_all(study.y_holders)
    curvature = Curvature(study.compiled, level.sign * level.expression, level.variables, known)
    spectra = tuple(curvature.spectrum(holder) for holder in study.y_holders)
    together = curvature.mean_spectrum(study.owners[0][1]) if study.compiled.scope == "federation" else None
    used = {p.id for b in (curvature.bounds.lower, curvature.bounds.upper) if b is not None for p in b.parameters()}
    exact = data_exact(study, used)
    rule = "curvature of the terms" if not curvature.bounds.exact else "the Hessian, which is constant"
    return LowerSpectra(spectra, together, rule, curvature.bounds.notes, exact)


def data_exact(study: Examination, used: set[int]) -> bool:
    """Whether the numbers are those of the declared problem, not of a sample that stands for it."""
    return not used & study.holders.distributed and of_every_holder(study, used)


def of_every_holder(study: Examination, used: AbstractSet[int]) -> bool:
    """Whether those looked at are all whose numbers differ: of many samples, and of a law's, only some are."""
    sampled = {s.id for s in study.compiled.declaration.roles.lower_samples}
    return study.compiled.scope != "sample" or study.holders.every_sample or not used & sampled


def _mapping_spectra(study: Examination) -> LowerSpectra:
    """Bound the spectra of an equilibrium's Jacobians in y: exactly where they are constant, else by intervals."""
    if moved := _why_moving(study):
        return _by_intervals(study, moved)
    if study.compiled.lower.size > DENSE_LIMIT:
        return _nothing(study, "the Jacobian is too large")
    x, y = study.project_x(np.zeros(study.compiled.upper.size)), np.zeros(study.compiled.lower.size)
    used = _slope_parameters(study.below)
    matrices: dict[Hashable, np.ndarray] = {}
    spectra: dict[Hashable, Spectrum] = {}
    keys = [_slope_key(study, holder, used) for holder in study.y_holders]
    for key, holder in zip(keys, study.y_holders):
        if key not in matrices:
            matrices[key] = study.lower.jacobian(x, y, ((1.0, holder),))
            spectra[key] = _of_matrix(matrices[key])
    together = None
    if study.compiled.scope == "federation":
        together = _of_matrix(np.asarray(sum(w * matrices[k] for k, (w, _) in zip(keys, study.owners[0][1]))))
    return LowerSpectra(tuple(spectra[key] for key in keys), together, "the Jacobian, which is constant", (), data_exact(study, used))


def _why_moving(study: Examination) -> str:
    """Why the Jacobian in y of an equilibrium's mapping is not the same everywhere; empty where it is."""
    level = study.below
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    curved = next((e for e, h in zip(level.expressions, hoisted) if not h.is_affine()), None)
    if curved is not None:
        return f"{expression_text(curved)} is not affine in y"
    ids = {v.id for v in level.variables}
    return "x moves the mapping's slopes" if any(moves_slopes(e, ids) for e in level.expressions) else ""


def _nothing(study: Examination, note: str) -> LowerSpectra:
    return LowerSpectra((Spectrum(),) * len(study.y_holders), None, "", (note,), False)


DISTINCT_LIMIT = 64  # holders that are looked at one by one
RULE = "intervals through the Jacobian, for x in X and y in the box around Y(x)"


def _by_intervals(study: Examination, moved: str) -> LowerSpectra:
    """The same for a Jacobian that moves, holder by holder or, where these are many, for all alike; ``moved`` says why it does."""
    level, common = study.below, known_of_all(study.y_holders)
    if study.compiled.lower.size > ROW_LIMIT:
        return _nothing(study, f"{moved}, and its Jacobian is too large for a bound entry by entry")
    whole = JacobianRows.of(level.expressions, level.variables)
    parts = bounding_jacobians(level, common) if isinstance(level, Nash) else None
    leaves = [leaf.id for e in level.declared for leaf in (*e.variables(), *e.parameters())]
    keys: list[Hashable] = [_key(holder.known, leaves) for holder in study.y_holders]
    known: dict[Hashable, Known] = dict(zip(keys, (holder.known for holder in study.y_holders)))
    if len(known) > DISTINCT_LIMIT:
        keys, known = [None] * len(keys), {None: common}

    def enclosed(rows: JacobianRows, weights: dict[Hashable, float]) -> Interval:
        return interval_sum([Interval.of(np.asarray(w)) * rows.enclosed(known[key]) for key, w in weights.items()])

    def spectrum(weights: dict[Hashable, float]) -> Spectrum:
        """Of a weighted sum of what holders have, by their keys."""
        matrix = enclosed(whole, weights)
        low, high = least_eigenvalue(matrix), norm_of(matrix)
        if parts is not None:
            lower = enclosed(parts.lower, weights)
            low = max(low, least_eigenvalue(lower))
            if parts.gap is not None:
                high = min(high, norm_of(lower) + norm_of(enclosed(parts.gap, weights)))
        return Spectrum(*(Edge(end, RULE) if np.isfinite(end) else None for end in (low, high)))

    spectra, together = {key: spectrum({key: 1.0}) for key in known}, None
    if study.compiled.scope == "federation":
        shares: dict[Hashable, float] = dict.fromkeys(known, 0.0)
        for key, (weight, _) in zip(keys, study.owners[0][1]):
            shares[key] += weight
        together = spectrum(shares)
    note = f"{moved}, and intervals through its Jacobian prove nothing"
    return LowerSpectra(tuple(spectra[key] for key in keys), together, RULE, (note,), True)  # a client's contain the supports of its laws


def _slope_key(study: Examination, holder: Holder, used: set[int]) -> Hashable:
    """Equal for holders whose Jacobians are equal, because no private number of theirs is in the slopes."""
    roles = study.compiled.declaration.roles
    if any(s.id in used for s in roles.lower_samples):
        return holder.label
    return holder.index if any(p.id in used for p in roles.client_parameters) else 0


def _slope_parameters(level: LowerLevel) -> set[int]:
    """Parameters beside which y stands, in anything but a sum."""
    kept = {v.id for v in level.variables}
    nodes = (part for expression in level.expressions for part in nodes_of(expression) if not isinstance(part, AddExpression))
    return {p.id for part in nodes if depends(part, kept) for a in part.args if not depends(a, kept) for p in a.parameters()}


def _of_matrix(matrix: np.ndarray) -> Spectrum:
    """mu from the symmetric part, L from the norm, both moved outward by the rounding."""
    values = np.linalg.eigvalsh(0.5 * (matrix + matrix.T))
    norm = float(np.linalg.norm(matrix, 2))
    slack = (64 + 8 * len(matrix)) * EPS * norm
    return Spectrum(Edge(float(values[0]) - slack, "smallest eigenvalue of the symmetric part"), Edge(norm + slack, "norm of the Jacobian"))


def upper_spectra(study: Examination) -> tuple[Spectrum, ...]:
    """Bound the spectrum of each client's Hessian of f_i; the problem has clients' terms and no lower level."""
    term = study.compiled.declaration.objective.clients
    assert term is not None
    return tuple(spectrum_in_x(study, term, holder) for holder in study.holders.clients)


def spectrum_in_x(study: Examination, term: cp.Expression, holder: Holder) -> Spectrum:
    """Bound the spectrum of the Hessian in x of a holder's term.

    Nothing is known where x may leave the domain that CVXPY's curvature is for (x^3 has another for x < 0), nor where a sample would
    stand for a distribution, which proves nothing.
    """
    curvature = Curvature(study.compiled, study.compiled.sign * term, tuple(study.compiled.upper.variables), holder.known)
    used = {p.id for bound in (curvature.bounds.lower, curvature.bounds.upper) if bound is not None for p in bound.parameters()}
    proved = not used & study.holders.distributed and Enclosure(holder.known).defined(term)
    return curvature.spectrum(holder) if proved else Spectrum()


def _key(known: Known, leaves: Sequence[int]) -> Hashable:
    """Equal for holders of whom the same is known."""
    return tuple((leaf, known[leaf].lo.tobytes(), known[leaf].hi.tobytes()) for leaf in leaves if leaf in known)


_FLAT = 1e-13  # of the sizes that cancel in a direction
POINTS = 12
_LENGTHS = (1.0, -1.0, 10.0, -10.0, 0.1, -0.1, 0.01, -0.01)
_TRUSTED = 1e-9  # of the same, for the rounding of a quotient
_APART = 1e-4  # relative distance of two points of which a quotient is taken
_QUOTIENT = "(F(y1) - F(y2))'(y1 - y2) / |y1 - y2|^2"


def _search_monotonicity(study: Examination, name: str, known: LowerSpectra, assumption: str) -> Finding:
    """Look for two points of Y(x) between which F is not strongly monotone."""
    if study.compiled.lower.size > JACOBIAN_LIMIT:
        too_large = f"no positive bound, and the Hessian is too large to search ({study.compiled.lower.size})"
        return Finding(name, "unknown", "; ".join(known.notes) or too_large, assumption)
    worst, points = np.inf, 0
    for base in _bases(study):
        points += 1
        for other in _along(study, base):
            step = other - base.y
            change = study.lower.operator(base.x, other, base.owner) - study.lower.operator(base.x, base.y, base.owner)
            ratio = float(change @ step / (step @ step))
            if not np.isfinite(ratio):
                continue
            worst = min(worst, ratio)
            if _shows_none(study, base, step, ratio):
                return _violation(study, name, assumption, base, other, ratio)
    reason = "; ".join(known.notes) or "no positive bound follows from the tree"
    if not np.isfinite(worst):
        return Finding(name, "unknown", reason, assumption)
    seen = f"{reason}; {_QUOTIENT} was at least {worst:.6g} wherever tried in Y(x), which is no bound"
    return Finding(name, "sampled", seen, assumption, points, worst)


class _Base(NamedTuple):
    """A point from which is searched, with F's Jacobian there."""

    label: str
    owner: Weighted
    x: np.ndarray
    y: np.ndarray
    jacobian: np.ndarray


def _bases(study: Examination) -> Iterator[_Base]:
    """Points of X and Y(x): draws, and means of several, which are inside, where directions lead further."""
    holders = study.y_holders[:POINTS]
    for holder in holders:
        owner: Weighted = ((1.0, holder),)
        for x in study.x_points[: max(1, POINTS // len(holders))]:
            draws = study.y_points(x, owner, 4)
            for y in (draws[0], draws.mean(axis=0)):
                jacobian = study.lower.jacobian(x, y, owner)
                if np.isfinite(jacobian).all():
                    yield _Base(holder.label, owner, x, y, jacobian)


def _along(study: Examination, base: _Base) -> Iterator[np.ndarray]:
    """Points of Y(x) on both sides of y in the direction in which F grows least, as far as the set goes."""
    direction = np.linalg.eigh(0.5 * (base.jacobian + base.jacobian.T))[1][:, 0]
    for length in _LENGTHS:
        other = study.lower.project(base.x, base.y + length * direction, base.owner)
        if np.linalg.norm(other - base.y) >= _APART * (1.0 + np.linalg.norm(base.y)):
            yield other


def _shows_none(study: Examination, base: _Base, step: np.ndarray, ratio: float) -> bool:
    """Whether a quotient is not positive, and no rounding of F makes it so."""
    length = float(np.linalg.norm(step))
    size = float(np.abs(step) @ np.abs(base.jacobian) @ np.abs(step)) / length**2
    if max(ratio, 0.0 if ratio else float(step @ base.jacobian @ step) / length**2) > _FLAT * size:
        return False
    rounding = 8 * EPS * float(np.linalg.norm(study.lower.operator(base.x, base.y, base.owner))) / length
    return ratio == 0 or rounding <= max(_TRUSTED * size, 0.5 * abs(ratio))


def _violation(study: Examination, name: str, assumption: str, base: _Base, other: np.ndarray, ratio: float) -> Finding:
    level, shaped = study.below, study.compiled.lower.unflatten
    witness: dict[str, Any] = {"client": base.label, "x": study.compiled.upper.unflatten(base.x), "y1": shaped(base.y)}
    witness |= {"y2": shaped(other), "direction": shaped((other - base.y) / np.linalg.norm(other - base.y)), "ratio": ratio}
    if level.kind != "equilibrium":
        wanted = "convex" if level.sign > 0 else "concave"
        what = f"not {wanted}" if ratio < -1e-9 else f"{wanted} but not strongly {wanted}"
        reason = f"{what}: along a direction the curvature is {f'{level.sign * ratio:.2e}' if ratio < -1e-9 else 0}"
        return Finding(name, "violated", reason, assumption, witness=witness)
    kind = "not monotone" if ratio < -1e-9 else "monotone at best: not strongly monotone"
    return Finding(name, "violated", f"{kind}: {_QUOTIENT} = {ratio:.6g}", assumption, witness=witness)


@dataclass(frozen=True)
class Moduli:
    """mu and L of the lower level.

    ``smooth`` is that of the assumption (the worst holder's), ``own_mu`` that of the problem that y(x) solves; ``proved`` unless a
    sample stands for a distribution.
    """

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]
    smooth: float
    own_mu: float
    proved: bool


def moduli(study: Examination) -> Moduli:
    """Bound the lower level's curvature from below and above, for every holder and for their mean."""
    level, holders, assumption = study.below, study.y_holders, study.assumption("(ii)")
    of_mapping, letter = level.kind == "equilibrium", level.letter
    known = _mapping_spectra(study) if of_mapping else _hessian_spectra(study)
    lowest = _constant(f"mu_{letter}", [s.low for s in known.spectra], ">=", holders)
    highest = _constant(f"L_{letter}", [s.high for s in known.spectra], "<=", holders)
    constants, mu, smooth = [lowest, highest], lowest.value, highest.value

    def bounded(name: str, bound: str, value: float, where: str = "") -> Finding:
        """A modulus that is proved, or known of the sample that stands for the data."""
        if known.proved:
            return Finding(name, "proved", f"{bound} by {known.rule}{where}", assumption)
        return Finding(name, "sampled", f"{bound}{where}, on the sample that stands for the data", assumption, len(holders), value)

    convexity = "strong monotonicity" if of_mapping else "strong convexity"
    if level.prices:
        convex = Finding(convexity, "not covered", "f has prices in it, and multipliers solve no strongly convex problem", assumption)
    elif mu > 0:
        uneven = len(set(lowest.by_client)) > 1
        convex = bounded(convexity, f"mu_{letter} >= {mu:.6g}", mu, f", attained by {lowest.attained_by}" if uneven else "")
    else:
        convex = _search_monotonicity(study, convexity, known, assumption)
    even = Finding("smoothness", "unknown", "; ".join(known.notes) or "no bound on the Hessian", assumption)
    if np.isfinite(smooth):
        even = bounded("smoothness", f"L_{letter} <= {smooth:.6g}", smooth)
    own = mu
    if known.together is not None:
        own = mu if known.together.low is None else known.together.low.value
        if len(holders) > 1:
            constants.append(_constant(f"mu_{letter} of the mean", [known.together.low], ">="))
            constants.append(_constant(f"L_{letter} of the mean", [known.together.high], "<="))
    if of_mapping and mu > 0 and np.isfinite(smooth):
        constants.append(Constant("kappa_F", smooth / mu * (1 + 1e-12), "<=", "L_F / mu_F"))
    if not known.proved:
        constants = [replace(c, reason=f"{c.reason}, on the sample that stands for the distribution") for c in constants]
    findings = (convex, even, *([_symmetry(study)] if of_mapping else []))
    return Moduli(findings, tuple(constants), smooth, max(own, 0.0), known.proved)


def _constant(name: str, edges: Sequence[Edge | None], side: str, holders: Sequence[Holder] = ()) -> Constant:
    """The worst of the ends, and whose of several holders it is."""
    nothing, worst = (-np.inf, np.argmin) if side == ">=" else (np.inf, np.argmax)
    ends = [nothing if e is None else float(e.value) for e in edges]
    values, place = tuple(end if np.isfinite(end) else max(end, 0.0) for end in ends), int(worst(ends))
    reason = next((e.rule for e in edges if e is not None), "no bound")
    return Constant(name, values[place], side, reason, *((holders[place].label, values) if len(edges) > 1 else ()))


def _symmetry(study: Examination) -> Finding:
    """Look at whether F's Jacobian is symmetric, at points (that of an affine mapping is the same everywhere)."""
    if study.compiled.lower.size > JACOBIAN_LIMIT:
        return Finding("F is a gradient", "unknown", "the Jacobian is too large to form")
    fixed, used = not _why_moving(study), _slope_parameters(study.below)
    different = {_slope_key(study, owner[0][1], used): (label, owner) for label, owner in reversed(study.owners)}
    worst, points = 0.0, 0
    for label, owner in list(different.values())[:POINTS]:
        for x in study.x_points[: 1 if fixed else 4]:
            y = study.y_points(x, owner, 1)[0]
            matrix = study.lower.jacobian(x, y, owner)
            gap = float(np.abs(matrix - matrix.T).max() / max(1e-300, np.abs(matrix).max()))
            worst, points = max(worst, gap), points + 1
            if gap > 1e-9:
                witness = {"client": label, "x": study.compiled.upper.unflatten(x), "y": study.compiled.lower.unflatten(y)}
                reason = "its Jacobian is not symmetric at a point, so that no objective has it: nothing asks for one"
                return Finding("F is no gradient", "proved", reason, witness=witness, points=points, worst=gap)
    if fixed and len(different) <= POINTS:
        reason = "the Jacobian is constant and symmetric"
        return Finding("F is a gradient", "proved", reason, points=points, worst=worst)
    return Finding("F is a gradient", "sampled", "symmetric Jacobians", points=points, worst=worst)

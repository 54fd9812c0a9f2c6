"""What every part of ``problem.check()`` works with: the compiled problem, who holds a copy of a function, points of X.

Holders are the clients, or each of their samples, with what is known of the leaves there. Of the lower level: its mapping F and the Jacobian,
at points, of which sampling and witnesses are made. Y(x) is fixed, moves by a translation ``Y(x) = T x + C``, or otherwise: its constraints
are functions of affine pieces in (x, y), and T makes every piece a function of y - T x alone (its slope in x is minus its slope in y times T).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.constraints import Equality, Inequality
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import Enclosure, Known
from hierfl.analysis.hoist import hoist
from hierfl.analysis.variable_bounds import attribute_constraints, bounds_of
from hierfl.atoms.algebra import nodes_of
from hierfl.atoms.intervals import Interval
from hierfl.compiler.data.tables import Data, Population, Table
from hierfl.compiler.expressions.program import NO_ROWS
from hierfl.compiler.starting_points import known_box, on_upper_set
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.language.expectation import total
from hierfl.language.levels import ArgMin, LowerLevel

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem


SIZE_LIMIT = 400  # scalars of x or y up to which a translation T is solved for


@dataclass(frozen=True)
class Movement:
    """``kind`` is ``"fixed"``, ``"translated"`` or ``"moving"``; ``shift`` the spectral norm of T (infinity if moving)."""

    kind: str
    shift: float


def movement(constraints: Sequence[Constraint], lower: Sequence[cp.Variable], upper: Sequence[cp.Variable]) -> Movement:
    """How the set that the constraints describe in the lower variables moves with the upper ones."""
    upper_ids, lower_ids = {v.id for v in upper}, {v.id for v in lower}
    about = [c for c in constraints if any(v.id in lower_ids for v in c.variables())]
    if not any(v.id in upper_ids for c in about for v in c.variables()):
        return Movement("fixed", 0.0)
    hoisted = hoist(about, [*lower, *upper])
    if hoisted.parameters and any(_multiplies(c) for c in hoisted.expressions):
        return Movement("moving", np.inf)
    for parameter in hoisted.parameters:
        parameter.save_value(np.zeros(parameter.shape))
    for twin in hoisted.twins.values():
        twin.save_value(np.zeros(twin.shape))
    pieces: list[Expression] = []
    for c in hoisted.expressions:  # two sides of a comparison count through their difference
        sides = [c.args[0] - c.args[1]] if isinstance(c, (Inequality, Equality)) else c.args
        pieces += [piece for side in sides for piece in _affine_pieces(side)]
    in_y, in_x = (sp.vstack([_slope(piece, group, hoisted.twins) for piece in pieces]).tocsr() for group in (lower, upper))
    # T with in_x = -in_y T: first plus or minus the identity, then the least-norm solution
    if in_y.shape[1] == in_x.shape[1]:
        for sign in (1.0, -1.0):
            if abs(in_x + sign * in_y).max() == 0:
                return Movement("translated", 1.0)
    if max(in_y.shape[1], in_x.shape[1]) > SIZE_LIMIT:
        return Movement("moving", np.inf)
    dense_y, dense_x = in_y.toarray(), in_x.toarray()
    shift = -np.linalg.lstsq(dense_y, dense_x, rcond=None)[0]
    scale = np.abs(dense_x).max() + np.abs(dense_y).max() * (1.0 + np.abs(shift).max())
    if np.abs(dense_y @ shift + dense_x).max() > 1e-10 * scale:
        return Movement("moving", np.inf)
    return Movement("translated", float(np.linalg.norm(shift, 2)) * (1 + 1e-9))


def _affine_pieces(node: Expression) -> list[Expression]:
    """The maximal affine subtrees that mention a variable."""
    if not node.variables():
        return []
    if node.is_affine():
        return [node]
    return [piece for argument in node.args for piece in _affine_pieces(argument)]


def _multiplies(node: Expression | Constraint) -> bool:
    """Whether a hoisted parameter is a factor of something with variables, or of unknown effect."""
    factors = (part for part in nodes_of(node) if not isinstance(part, (Inequality, Equality, AddExpression)) and part.variables())
    return any(a.parameters() and not a.variables() for part in factors for a in part.args)


def _slope(piece: Expression, variables: Sequence[cp.Variable], twins: dict[cp.Variable, cp.Variable]) -> sp.csr_array:
    """The slope of an affine piece: a row for each entry, a column for each scalar, both in CVXPY's order."""
    slopes, blocks = piece.grad, []
    for variable in variables:
        slope = slopes.get(twins[variable], sp.csc_array((variable.size, piece.size)))
        if not sp.issparse(slope):  # CVXPY gives numbers for scalars
            slope = np.reshape(slope, (variable.size, piece.size))
        blocks.append(sp.csr_array(slope.T))
    return sp.hstack(blocks)


GROUPS = 64  # of a client's rows, each bounded by itself: a root mean square over them is less than the worst row's
SAMPLE_LIMIT = 64  # rows of a client that are looked at as owners of a y


@dataclass(frozen=True, eq=False)
class Holder:
    """A client (``population`` and ``index``) or one sample of a client (``population`` is None, its values in ``own``).

    ``known`` bounds every leaf: x on X, y on the box around all Y(x), parameters at their values, samples on their range.
    ``rows`` counts the samples behind a mean, ``answered`` are those whose rows have a y of their own.
    """

    label: str
    index: int
    population: Population | None
    own: dict[int, Any]
    known: Known
    rows: int
    answered: frozenset[int] = frozenset()

    def count(self, average: total) -> int:
        """The number of rows of the table that a total adds up."""
        assert self.population is not None
        said = {p.id for p in average.parameters()}
        return next(int(t.counts[self.index]) for samples in (said, self.answered) for t in self.population.tables if samples & set(t.samples))


def _hulls(table: Table, rows: np.ndarray) -> dict[int, Interval]:
    return {leaf: Interval.hull(np.asarray(values)) for leaf, values in table.rows(rows).items()}


def domain_of(level: LowerLevel) -> list[Constraint]:
    """Where an objective is declared, such as y >= 0 for power(y, 3)."""
    return [row for part in level.expressions for row in part.domain] if isinstance(level, ArgMin) else []


def known_of_all(holders: Sequence[Holder]) -> Known:
    """What is known of the leaves for each of several holders."""
    every = [holder.known for holder in holders]
    of_all = {leaf: [one[leaf] for one in every] for leaf in every[0] if all(leaf in one for one in every)}
    return {leaf: Interval(np.min([b.lo for b in boxes], axis=0), np.max([b.hi for b in boxes], axis=0)) for leaf, boxes in of_all.items()}


@dataclass(frozen=True, eq=False)
class Holders:
    """The holders of one compiled problem's data."""

    compiled: CompiledProblem

    @cached_property
    def data(self) -> Data:
        return self.compiled.data()

    @cached_property
    def clients(self) -> tuple[Holder, ...]:
        name = self.compiled.declaration.client_called
        return tuple(self._client(self.data.clients, i, name(i)) for i in range(self.compiled.num_clients))

    @cached_property
    def server(self) -> Holder | None:
        return None if self.data.server is None else self._client(self.data.server, 0, "the server")

    @cached_property
    def samples(self) -> tuple[Holder, ...]:
        """Samples of a sample-scope level as holders, at most ``SAMPLE_LIMIT`` of each client (evenly spread)."""
        place = self.compiled.row_table(self.data.clients)
        table = self.data.clients.tables[place]
        lower_set, holders = self.compiled.lower_set, []
        moving = bool(lower_set.depends_on & set(table.samples))
        for client in self.clients:
            start, count = int(table.offsets[client.index]), int(table.counts[client.index])
            for row in np.unique(np.linspace(0, count - 1, min(count, SAMPLE_LIMIT)).astype(int)):
                values, known = {leaf: np.asarray(v) for leaf, v in table.rows(start + row).items()}, client.known
                if self.every_sample:  # else intervals are to hold for the rows that are left out
                    known = {**known, **{leaf: Interval.of(v) for leaf, v in values.items()}}
                    known = self._with_lower(known) if moving else known
                own = {**client.own, **{leaf: jnp.asarray(v) for leaf, v in values.items()}}
                holders.append(Holder(f"{client.label}, sample {row}", client.index, None, own, known, 1))
        return tuple(holders)

    @property
    def every_sample(self) -> bool:
        """Whether :attr:`samples` leaves none out, and none stands for a distribution."""
        table = self.data.clients.tables[self.compiled.row_table(self.data.clients)]
        return table.quantiles is None and int(np.max(table.counts)) <= SAMPLE_LIMIT

    def groups(self, holder: Holder, samples: tuple[int, ...]) -> list[tuple[float, Known]]:
        """(share of the rows, what is known of the leaves in that group) for up to ``GROUPS`` groups of rows.

        The rows are those of the table that holds ``samples``; if they come from several tables or none, all are one group.
        """
        assert holder.population is not None
        tables = [table for table in holder.population.tables if set(samples) & set(table.samples)]
        if len(tables) != 1 or tables[0].quantiles is not None:
            return [(1.0, holder.known)]
        (table,) = tables
        start, count = int(table.offsets[holder.index]), int(table.counts[holder.index])
        parts = np.array_split(np.arange(start, start + count), min(count, GROUPS))
        return [(len(part) / count, {**holder.known, **_hulls(table, part)}) for part in parts]

    def _client(self, population: Population, index: int, label: str) -> Holder:
        party = population.party(index)
        own = dict(party.environment)
        known: dict[int, Interval] = {**self.compiled.declaration.known_bounds}
        known |= {leaf: Interval.of(np.asarray(value)) for leaf, value in own.items()}
        rows = 1
        for table in population.tables:
            start, count = int(table.offsets[index]), int(table.counts[index])
            rows = max(rows, count)
            if table.quantiles is None:
                known |= _hulls(table, np.arange(start, start + count))
                continue
            federation = self.compiled.declaration.federation
            assert federation is not None
            held = federation.server if population is self.data.server else federation.clients[index]
            assert held is not None
            for sample, law in held.samples.items():
                if sample.id in table.samples:
                    ends = law.support() if hasattr(law, "support") else (-np.inf, np.inf)
                    known[sample.id] = Interval(*(np.broadcast_to(np.asarray(e, float), sample.shape) for e in ends))
        return Holder(label, index, population, own, self._with_lower(known), rows, frozenset(s.id for s in self.compiled.declaration.roles.lower_samples))

    @cached_property
    def distributed(self) -> frozenset[int]:
        """Which samples are held as distributions: means over them are computed on nodes."""
        sides = [self.data.clients, *([] if self.data.server is None else [self.data.server])]
        return frozenset(s for side in sides for t in side.tables if t.quantiles is not None for s in t.samples)

    def _with_lower(self, known: dict[int, Interval]) -> Known:
        level = self.compiled.declaration.lower_level
        if level is None:
            return known
        constraints = [*level.constraints, *attribute_constraints(level.variables), *domain_of(level)]
        return {**known, **bounds_of(constraints, level.variables, known)}


JACOBIAN_LIMIT = 400  # scalars of y up to which a search for what is not monotone takes eigenvalues
Weighted = Sequence[tuple[float, "Holder"]]


@dataclass(frozen=True, eq=False)
class MappingAtPoints:
    """F of one owner of a y, as a weighted sum over holders."""

    compiled: CompiledProblem

    def operator(self, x: np.ndarray, y: np.ndarray, owner: Weighted) -> np.ndarray:
        return self._sum(self._programs[0], x, y, owner)

    def jacobian(self, x: np.ndarray, y: np.ndarray, owner: Weighted) -> np.ndarray:
        return self._sum(self._programs[1], x, y, owner)

    def project(self, x: np.ndarray, y: np.ndarray, owner: Weighted) -> np.ndarray:
        return np.asarray(self._project(jnp.asarray(x), jnp.asarray(y), owner[0][1].own))

    @cached_property
    def _project(self) -> Callable[..., jax.Array]:
        exact = self.compiled.lower_set.is_exact
        return jax.jit(self.compiled.project_lower) if exact else self.compiled.project_lower

    def gap(self, x: np.ndarray, owner: Weighted) -> float:
        """The amount by which the constraints of Y(x) miss each other: positive where Y(x) is empty."""
        return float(self.gap_function(jnp.asarray(x), owner[0][1].own))

    @cached_property
    def gap_function(self) -> Callable[..., jax.Array]:
        """The map ``(x, the owner's numbers) -> gap`` as a traceable function, compiled where the set has an exact projection."""
        lower_set = self.compiled.lower_set

        def gap(x: jax.Array, own: dict[int, Any]) -> jax.Array:
            return jnp.max(lower_set.gap(self.compiled.environment(x, None, own)))

        return jax.jit(gap) if lower_set.is_exact else gap

    def _sum(self, function: Callable[..., jax.Array], x: np.ndarray, y: np.ndarray, owner: Weighted) -> np.ndarray:
        at = jnp.asarray(x), jnp.asarray(y)
        return np.sum([weight * np.asarray(function(*at, h.population, h.index, h.own)) for weight, h in owner], axis=0)

    @cached_property
    def _programs(self) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
        compiled = self.compiled

        def mapping(x: jax.Array, y: jax.Array, population: Population | None, index: int, own: dict[int, Any]) -> jax.Array:
            if population is None:
                return compiled.operator(x, y, own, NO_ROWS)
            return population.party(index).mean(lambda rows: compiled.operator(x, y, own, rows), compiled.lower_samples)

        return quick_jit(mapping), quick_jit(jax.jacfwd(mapping, argnums=1))


_CLASSES = {None: "nn", "federation": "bl", "sample": "2s", "client": "hfl"}
_ASSUMPTIONS = {"nn": "[NN] Assumption 1", "2s": "[2S] Assumption 3", "hfl": "[HFL] Assumption 1"}
_ASSUMPTIONS |= dict.fromkeys(("bl", "mm"), "[2S] Assumption 2")
_SCALES = (0.1, 1.0, 10.0, 100.0)  # of normal draws: nothing says how large X and Y(x) are


@dataclass(frozen=True, eq=False)
class Examination:
    """One check of one problem; ``samples`` points are tried where nothing is proved.

    ``starts`` (k, n) are those of the runs that the theorem is asked about; None stands for any point of X.
    ``local_steps`` is an H that it is asked for, None the one that it chooses.
    """

    compiled: CompiledProblem
    smoothing: float
    samples: int
    seed: int
    starts: np.ndarray | None = None
    local_steps: int | None = None

    @property
    def problem_class(self) -> str:
        """``"nn"``, ``"bl"``, ``"mm"``, ``"2s"`` or ``"hfl"``, as the papers call them."""
        level = self.level
        if level is not None and level.kind == "argmax" and level.scope == "federation":
            return "mm"
        return _CLASSES[self.compiled.scope]

    def assumption(self, part: str, *without: str) -> str:
        """The part of the class's assumption, such as ``"(ii)"``; empty for classes ``without`` it."""
        kind = self.problem_class
        return "" if kind in without else f"{_ASSUMPTIONS[kind]} {part}"

    @property
    def level(self) -> LowerLevel | None:
        return self.compiled.declaration.lower_level

    @property
    def below(self) -> LowerLevel:
        """The lower level, of what is about it and asked where there is one."""
        assert self.level is not None
        return self.level

    @property
    def lower_constraints(self) -> tuple[Constraint, ...]:
        """The constraints of Y(x), attributes of its variables included; in federation scope those of every client."""
        return self.compiled.lower_set.constraints

    @cached_property
    def holders(self) -> Holders:
        return Holders(self.compiled)

    @cached_property
    def lower(self) -> MappingAtPoints:
        return MappingAtPoints(self.compiled)

    @cached_property
    def owners(self) -> tuple[tuple[str, Weighted], ...]:
        """Every owner of a y, by label: the federation, the clients, or the samples."""
        clients = self.holders.clients
        if self.compiled.scope == "federation":
            weights = self.holders.data.clients.weights
            return (("the federation", tuple((float(w), h) for w, h in zip(weights, clients))),)
        each = self.holders.samples if self.compiled.scope == "sample" else clients
        return tuple((holder.label, ((1.0, holder),)) for holder in each)

    @cached_property
    def set_owners(self) -> tuple[tuple[str, Weighted], ...]:
        """Owners with different sets Y(x): one, if neither clients nor samples enter the constraints."""
        roles, used = self.compiled.declaration.roles, self.compiled.lower_set.depends_on
        if any(s.id in used for s in roles.lower_samples):
            return self.owners
        if any(p.id in used for p in roles.client_parameters):
            return tuple({owner[0][1].index: (label, owner) for label, owner in reversed(self.owners)}.values())[::-1]
        return self.owners[:1]

    @property
    def y_holders(self) -> tuple[Holder, ...]:
        """Whose lower objectives the assumptions are about: the clients, or the samples."""
        return self.holders.samples if self.compiled.scope == "sample" else self.holders.clients

    @cached_property
    def domain(self) -> tuple[Constraint, ...]:
        """What keeps y(x) in Y(x) besides its constraints: the domain of the objective, where they do not."""
        own = {v.id for v in self.below.variables}
        free = [{leaf: box for leaf, box in holder.known.items() if leaf not in own} for holder in self.holders.clients]
        inside = [Enclosure({**known, **bounds_of(self.lower_constraints, self.below.variables, known)}) for known in free]
        return tuple(row for row in domain_of(self.below) if not all(one.holds(row) for one in inside))

    @cached_property
    def movement(self) -> Movement:
        return movement((*self.lower_constraints, *self.domain), self.below.variables, self.compiled.upper.variables)

    @cached_property
    def x_points(self) -> np.ndarray:
        """Points of X ``(k, n)`` to try: projections of normal draws at several scales, and of corners of the box around X."""
        rng = np.random.default_rng(self.seed)
        size = self.compiled.upper.size
        draws = np.concatenate([scale * rng.standard_normal((max(1, self.samples // 8), size)) for scale in _SCALES])
        box = self.x_box
        low, high = (np.where(np.isfinite(end), end, 10.0 * sign) for end, sign in ((box.lo, -1), (box.hi, 1)))
        corners = np.where(rng.random((max(1, self.samples // 2), size)) < 0.5, low, high)
        middle = 0.5 * (low + high)
        starts = np.concatenate([np.zeros((1, size)), middle[None], low[None], high[None], draws, corners])
        return on_upper_set(self.compiled, starts[: max(self.samples, 4)])

    @cached_property
    def x_box(self) -> Interval:
        return known_box(self.compiled)

    @cached_property
    def unbounded(self) -> str:
        """Which variables nothing is known to bound on X and Y(x), as advice where a bound is missing; empty where all are."""
        below = () if self.level is None else self.level.variables
        known = [holder.known for holder in self.holders.clients]

        def is_bounded(v: cp.Variable) -> bool:
            return all(v.id in k and k[v.id].is_bounded for k in known)

        free = [v.name() for v in (*self.compiled.upper.variables, *below) if not is_bounded(v)]
        return f"nothing is known to bound {', '.join(free)} on the declared sets: add constraints that do" if free else ""

    def project_x(self, z: np.ndarray) -> np.ndarray:
        return on_upper_set(self.compiled, z[None])[0]

    def y_points(self, x: np.ndarray, owner: Weighted, count: int) -> np.ndarray:
        """Draw points of Y(x) ``(count, size)``: projections of normal draws."""
        rng = np.random.default_rng(self.seed + 1)
        draws = rng.standard_normal((count, self.compiled.lower.size)) * rng.choice(_SCALES, (count, 1))
        return np.stack([self.lower.project(x, z, owner) for z in draws])

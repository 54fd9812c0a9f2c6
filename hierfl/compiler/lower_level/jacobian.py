"""The Jacobian J of a lower level's quadratic (or affine) part: its pattern and its modulus mu, from looks when a problem is compiled.

By CVXPY's rules every addend of a convex objective is convex by itself, so the Hessian of its quadratic addends alone
bounds the curvature from below. What that Hessian looks like (constant, diagonal, a multiple of the identity, symmetric,
diagonal plus rank one) is what generic points have in common with actual ones; its values are computed where it is used.

Probes are where the compiler looks to see what holds everywhere. What holds at a generic point holds almost everywhere, unless x or data enter by
atoms with kinks, and what holds at a special one (a corner of X, clients that happen to be alike, a parameter that is 0 today) need not. Generic points are random convex combinations: of points of X, of all clients'
parameters, of samples, of values that a ``cp.Parameter`` may take; so they keep signs, bounds and definiteness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy import Parameter
from cvxpy.expressions.expression import Expression
from jax import Array
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Float

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import NOTHING_KNOWN, Enclosure, Known
from hierfl.analysis.hoist import hoist
from hierfl.atoms.algebra import addends
from hierfl.atoms.table import row_of
from hierfl.compiler.data.tables import Population, Table
from hierfl.compiler.expressions.program import NO_ROWS, Environment, Program, Rows
from hierfl.compiler.oracles import Oracles
from hierfl.errors import NotConvexError
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.language.levels import LowerLevel, averages_of

CLIENTS = 4  # that are looked at as they are
ROWS = 64  # of a table in an average
SCALARS, SCALARS_IN_PROGRAMS = 10_000_000, 2_000_000  # of the rows that are combined, or that an average is taken of
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
    found = []
    for client, x in zip(chosen, _points_of_x(oracles, len(chosen), seed=0)):
        own, drawn = dict(clients.party(client).environment), NO_ROWS
        if oracles.scope == "sample":
            row = clients.some_rows(int(client), 1, oracles.lower_samples).values
            own |= {leaf: value[0] for leaf, value in row.items()}
        elif from_data:
            drawn = clients.some_rows(int(client), ROWS, oracles.lower_samples)
        found.append(Probe(x, own, drawn))
    return found


def generic_probes(oracles: Oracles, from_data: bool) -> list[Probe]:
    """Two points without anything special in common."""
    clients, points = oracles.clients_in_numpy(), _points_of_x(oracles, 2, seed=1)
    rngs = map(np.random.default_rng, range(2))
    return [Probe(x, *_generic_owner(oracles, clients, rng, from_data)) for x, rng in zip(points, rngs)]


def _points_of_x(oracles: Oracles, count: int, seed: int) -> list[np.ndarray]:
    """Combinations of projections, around one: X may lie far from 0."""
    rng, own = np.random.default_rng(seed), oracles.clients_in_numpy().party(0).environment

    def project(x: np.ndarray) -> np.ndarray:
        return oracles.upper_set.point_near(x, own)

    return _combinations(project(rng.standard_normal(oracles.upper.size)), project, rng, count)


def _combinations(
    middle: np.ndarray, nearest: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator, count: int
) -> list[np.ndarray]:
    """Combinations of what is nearest to points in pairs on opposite sides of one."""
    moves = (1.0 + np.abs(middle)) * rng.standard_normal((2, *middle.shape))
    ends = np.array([nearest(middle + sign * move) for move in moves for sign in (1.0, -1.0)])
    return [np.tensordot(weights, ends, axes=1) for weights in rng.dirichlet(np.ones(len(ends)), count)]


def _generic_owner(
    oracles: Oracles, clients: Population, rng: np.random.Generator, from_data: bool
) -> tuple[dict[int, Any], Rows]:
    weights = rng.dirichlet(np.ones(clients.size))
    parameters = {p.id: p for p in oracles.declaration.roles.parameters}
    own = {leaf: _generic_value(parameters[leaf], value, rng) for leaf, value in clients.public.items()}
    own |= {leaf: np.tensordot(weights, values, axes=1) for leaf, values in clients.parameters.items()}
    tables = [table for table in clients.tables if set(table.samples) & set(oracles.lower_samples)]
    rows = NO_ROWS
    for table in tables if from_data or oracles.scope == "sample" else ():
        weights, values = _combination(table, SCALARS if oracles.scope == "sample" else SCALARS_IN_PROGRAMS, rng)
        if oracles.scope == "sample":
            own |= {leaf: np.tensordot(weights, np.asarray(value), axes=1) for leaf, value in values.items()}
        else:
            rows = Rows(rows.values | values, rows.weights | dict.fromkeys(values, weights), rows.counts | dict.fromkeys(values, table.counts[0]))
    return own, rows


def _combination(table: Table, scalars: int, rng: np.random.Generator) -> tuple[Any, dict[int, Any]]:
    """Weights of all rows, or of as many as are quickly read, and these: one row may be unlike all others."""
    row = sum(int(np.prod(column.shape[1:], dtype=int)) for column in table.values.values())
    most = max(1, scalars // max(1, row))
    chosen = np.arange(table.size) if table.size <= most else rng.choice(table.size, most)
    return rng.dirichlet(np.ones(chosen.size)), table.rows(chosen)


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

    return _combinations(today, allowed, rng, 1)[0]


DENSE_LIMIT = 400
CONSTANT_DENSE_LIMIT = 2000
KRYLOV = 40  # products by which the convexity of a larger Hessian is judged


@dataclass(frozen=True)
class QuadraticPart:
    """The addends of the lower level that are quadratic (for a mapping: affine) in y, as one program.

    ``complete`` says that nothing else is there: F is affine in y. ``from_data`` says that an average is among them. ``has_kinks`` says that what
    multiplies y has kinks: beyond one J may have another pattern, which no generic point shows. ``terms`` is what the program is of.
    """

    program: Program | None
    gradient_of: float | None  # sign of the objective, or None for a mapping
    complete: bool
    from_data: bool
    has_kinks: bool = False
    terms: Sequence[Expression] = ()

    def operator(self, oracles: Oracles, x: Array, y: Array, own: Environment, rows: Rows = NO_ROWS) -> Array:
        """The affine map of the quadratic part (a gradient, or the mapping itself)."""
        program, sign = self.program, self.gradient_of
        if program is None:
            return jnp.zeros(oracles.lower.size, x.dtype)
        if sign is None:
            return jnp.concatenate([jnp.ravel(value) for value in program(oracles.environment(x, y, own), rows)])
        return jax.grad(lambda flat: sign * jnp.reshape(program(oracles.environment(x, flat, own), rows)[0], ()))(y)

    def structure(self, oracles: Oracles) -> Pattern:
        """The pattern of J whatever multiplies y: with numbers for it that have nothing in common but what is known of their signs."""
        variables, rng = oracles.lower.variables, np.random.default_rng(0)
        hoisted = hoist(self.terms, variables)
        program = Program([part for part in hoisted.expressions if isinstance(part, Expression)])
        known = {p.id: _combinations(p.project(rng.standard_normal(p.shape)), p.project, rng, 1)[0] for p in hoisted.parameters}

        def values(flat: Array) -> tuple[Array, ...]:
            parts = oracles.lower.split(flat)
            return program({**known, **{hoisted.twins[v].id: parts[v.id] for v in variables}})

        def mapping(flat: Array) -> Array:
            if self.gradient_of is None:
                return jnp.concatenate([jnp.ravel(value) for value in values(flat)])
            return jax.grad(lambda flat: jnp.reshape(values(flat)[0], ()))(flat)

        at_zero = jnp.zeros(oracles.lower.size)
        return _probe(quick_jit(lambda vector: jax.jvp(mapping, (at_zero,), (vector,))[1]), oracles.lower.size)


def quadratic_part(level: LowerLevel, with_data: bool, known: Known = NOTHING_KNOWN) -> QuadraticPart:
    """The quadratic part of a lower level; ``with_data=False`` leaves averages out (a weaker, cheaper bound)."""
    if level.kind == "equilibrium":
        affine = all(e.is_affine() for e in hoist(level.expressions, level.variables, known).expressions)
        from_data = any(True for e in level.expressions for _ in averages_of(e))
        program = Program(level.expressions) if affine else None
        return QuadraticPart(program, None, affine, from_data, _have_kinks(level.expressions, known), level.expressions)
    terms = addends(level.expression)
    quadratic = [term for term in terms if is_quadratic(hoist([term], level.variables, known).expressions[0])]
    used = quadratic if with_data else [term for term in quadratic if not any(averages_of(term))]
    program = Program([sum(used[1:], start=used[0])]) if used else None
    from_data = any(True for t in used for _ in averages_of(t))
    return QuadraticPart(program, level.sign, len(used) == len(terms), from_data, _have_kinks(used, known), [sum(used)] if used else [])


def _have_kinks(expressions: Sequence[Expression], known: Known) -> bool:
    """Whether an atom that changes its branch is among them: in what is quadratic in y, or affine, it is of x and constants."""
    enclosure = Enclosure(known)

    def changes(node: Expression) -> bool:
        row = row_of(node)
        if not row.kinked or not node.args:
            return False
        ranges = [enclosure(switch) for switch in row.switches(node)] if row.switches else []
        return row.opaque or any(((inside.lo < 0) & (inside.hi > 0)).any() for inside in ranges)

    def has(node: Expression) -> bool:
        return changes(node) or any(map(has, node.args))

    return any(map(has, expressions))


class Pattern(NamedTuple):
    """What random probes of the Jacobian of an affine map F showed; ``positive`` is about J times ones (a diagonal J)."""

    diagonal: bool
    isotropic: bool
    symmetric: bool
    positive: bool

    def where(self, other: Pattern) -> Pattern:
        """What the other has as well; being positive is no matter of it."""
        diagonal, isotropic, symmetric = (mine and own for mine, own in zip(self[:3], other[:3]))
        return Pattern(diagonal, isotropic, symmetric, self.positive)


def _probe(multiply: Any, size: int, seed: int = 0) -> Pattern:
    """The pattern of the linear map ``multiply`` (vector -> vector) from products with random vectors.

    A map that is not diagonal (isotropic, symmetric) is taken for one with probability zero, up to rounding.
    """
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal((2, size))
    diagonal = np.asarray(multiply(np.ones(size)))
    image_u, image_v = np.asarray(multiply(u)), np.asarray(multiply(v))
    # entry by entry: an off-diagonal entry is negligible only beside the diagonal entries of its row and its column
    is_diagonal = all(
        bool((np.abs(image - diagonal * vector) <= 1e-12 * np.abs(diagonal)).all())
        for vector, image in ((u, image_u), (v, image_v))
    )
    return Pattern(
        diagonal=is_diagonal,
        isotropic=is_diagonal and bool(np.ptp(diagonal) <= 1e-12 * np.abs(diagonal).max()),
        positive=bool((diagonal > 0).all()),
        symmetric=is_diagonal
        or bool(abs(u @ image_v - v @ image_u) <= 1e-12 * np.linalg.norm(u) * np.linalg.norm(image_v)),
    )


def _is_symmetric(matrix: np.ndarray) -> bool:
    """Whether opposite entries agree up to the rounding of sums of the diagonal's size."""
    size = np.sqrt(np.abs(np.diagonal(matrix)))
    rounding = 1e-12 * np.maximum(np.outer(size, size), np.maximum(np.abs(matrix), np.abs(matrix.T)))
    return bool((np.abs(matrix - matrix.T) <= rounding).all())


def safe_smallest_eigenvalue(matrix: Array) -> Array:
    """The smallest eigenvalue of the symmetric part, less a bound on the rounding of the eigenvalue solver; at least 0."""
    symmetric = 0.5 * (matrix + matrix.T)
    values = jnp.linalg.eigvalsh(symmetric)
    size = matrix.shape[0]
    return jnp.maximum(values[0] - 8 * size * jnp.finfo(matrix.dtype).eps * jnp.abs(values).max(), 0.0)


def dense(multiply: Any, size: int, dtype: Any = float) -> Array:
    """The matrix of a linear map."""
    return jax.vmap(multiply, in_axes=1, out_axes=1)(jnp.eye(size, dtype=dtype))


LOOKED_AT = 10  # rows, and columns, at most; a fourth of all
Product = Callable[[Any], Array]  # with a linear map


class RankOne(NamedTuple):
    """diag(d) + u v': ``diagonal`` d, ``left`` u and ``right`` v."""

    diagonal: Float[Array, " n"]
    left: Float[Array, " n"]
    right: Float[Array, " n"]

    def invertible(self) -> Array:
        """Whether d is positive, beyond rounding: y(theta) divides by it."""
        return (self.diagonal > 1e-12 * jnp.max(jnp.abs(self.left * self.right))).all()

    def reproduces(self, multiply: Product) -> Array:
        """Whether this is J, by products with random vectors."""
        vectors = np.random.default_rng(1).standard_normal((3, self.diagonal.size))
        return jax.vmap(lambda vector: self._agrees(multiply, vector, 1e-10))(jnp.asarray(vectors, float)).all()

    def where_true(self, multiply: Product) -> RankOne:
        """The same if it reproduces a product with J, NaN if not: an owner's J may have another structure; traceable."""
        vector = jnp.cos(jnp.arange(1, self.diagonal.size + 1, dtype=self.diagonal.dtype) ** 2)
        agrees = self._agrees(multiply, vector, jnp.sqrt(jnp.finfo(self.diagonal.dtype).eps))
        return self._replace(diagonal=jnp.where(agrees, self.diagonal, jnp.nan))

    def _agrees(self, multiply: Product, vector: Array, tolerance: Array | float) -> Array:
        """Whether J v is this, each row and column beside the size of its diagonal entry; False where it is NaN."""
        size = jnp.sqrt(jnp.abs(self.diagonal + self.left * self.right))
        missed = jnp.abs(self.multiply(vector) - multiply(vector))
        return (missed <= tolerance * size * jnp.linalg.norm(size * vector)).all()

    def multiply(self, y: Array) -> Array:
        return self.diagonal * y + self.left * (self.right @ y)

    def modulus(self) -> Array:
        """A lower bound on the smallest eigenvalue of the symmetric part: min d plus that of (u v' + v u') / 2."""
        inner, lengths = self.left @ self.right, jnp.linalg.norm(self.left) * jnp.linalg.norm(self.right)
        rounding = 64 * jnp.finfo(lengths.dtype).eps * (lengths + jnp.max(jnp.abs(self.diagonal)))
        return jnp.maximum(jnp.min(self.diagonal) + 0.5 * jnp.minimum(inner - lengths, 0.0) - rounding, 0.0)

    def steepness(self) -> Array:
        """What v'y(theta) makes of a change of theta at most: sum |u v / d|."""
        return jnp.sum(jnp.abs(self.left * self.right / self.diagonal))

    def size(self) -> Array:
        """An upper bound on the norm of J: its size, not how many rows it has."""
        return jnp.max(jnp.abs(self.diagonal)) + jnp.linalg.norm(self.left) * jnp.linalg.norm(self.right)


class Skeleton(NamedTuple):
    """Which rows I and columns K of J to look at: disjoint, they meet off the diagonal, so that J[I, K] has rank one if J is diag(d) + u v'.

    A row and a column of it give u and v, from products with J and J' alone (a skeleton decomposition).
    """

    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, multiply: Product, size: int) -> Skeleton | None:
        """What J could have, from its products; None if it is not diagonal plus rank one, of at least eight scalars."""
        count = min(LOOKED_AT, size // 4)
        if count < 2:
            return None
        places = np.random.default_rng(0).permutation(size).astype(np.int32)  # 64-bit indices fail in single precision
        rows, columns = np.sort(places[:count]), np.sort(places[count : 2 * count])
        by_columns = np.asarray(quick_jit(lambda: jax.vmap(multiply, out_axes=1)(_units(columns, size)))())
        values = np.linalg.svd(by_columns[rows], compute_uv=False)
        rank = int(np.sum(values > 1e-11 * max(values[0], np.abs(np.diagonal(by_columns[columns])).max())))
        return cls(rows, columns) if rank == 1 else None

    def decompose(self, multiply: Product, size: int, symmetric: bool) -> RankOne:
        """diag(d) + u v' of a map with this skeleton: a column over its pivot, and the pivot's row; traceable.

        Where all entries are alike no rounding enters.
        """
        transpose = multiply
        if not symmetric:
            transposed = jax.linear_transpose(multiply, jnp.zeros(size))
            transpose = lambda v: transposed(v)[0]  # noqa: E731
        at_rows, at_columns = _units(self.rows, size), _units(self.columns, size)
        by_columns = jax.vmap(multiply, out_axes=1)(at_columns)  # J[:, K]
        by_rows = jax.vmap(transpose, out_axes=1)(at_rows)  # J[I, :]'
        plain = np.setdiff1d(np.arange(size, dtype=np.int32), np.concatenate([self.rows, self.columns]))
        columns_beside = jax.vmap(transpose)(at_columns)[:, plain]  # J[K, plain]
        rows_beside = jax.vmap(multiply)(at_rows)[:, plain]  # J[plain, I]'
        block = by_columns[self.rows]
        row, column = jnp.unravel_index(jnp.argmax(jnp.abs(block)), block.shape)
        left, right = _quotient(by_columns[:, column], block[row, column]), by_rows[:, row]
        # but for the pivot's own entries, where the diagonal is
        widest, longest = jnp.argmax(jnp.abs(right[plain])), jnp.argmax(jnp.abs(left[plain]))
        own_left = _quotient(columns_beside[column, widest], right[plain][widest])
        own_right = _quotient(rows_beside[row, longest], left[plain][longest])
        left = left.at[jnp.asarray(self.columns)[column]].set(own_left)
        right = right.at[jnp.asarray(self.rows)[row]].set(own_right)
        # signs s in turn give the diagonal: J s = d s + u (v' s), where v' s is small if neighbours are alike
        signs = 1.0 - 2.0 * (jnp.arange(size) % 2)
        return RankOne(signs * (multiply(signs) - left * (right @ signs)), left, right)


def _quotient(above: Array, below: Array) -> Array:
    """above / below, and 0 over 0: a coupling may vanish at a point."""
    return jnp.where(below == 0, 0.0, above / jnp.where(below == 0, 1.0, below))


def _units(places: np.ndarray, size: int) -> Array:
    """Unit vectors, (places, size)."""
    return (jnp.arange(size) == jnp.asarray(places)[:, None]).astype(float)


@dataclass(frozen=True)
class Jacobian:
    """What looks at the Jacobian J of the quadratic part have shown.

    ``mode`` says where the modulus mu comes from: ``"constant"`` (``modulus``), ``"diagonal"``, ``"dense"``, ``"rank one"`` or
    ``"unknown"``. ``parts`` is diag(d) + u v' where that is J everywhere, with its ``steepness``; ``skeleton`` says which rows and
    columns of J to look at where it is of that form with other numbers.
    """

    pattern: Pattern
    mode: str = "unknown"
    modulus: float = 0.0
    skeleton: Skeleton | None = None
    parts: RankOne | None = None
    steepness: float = math.inf


def jacobian_of(oracles: Oracles, part: QuadraticPart) -> Jacobian:
    """The pattern is what generic points have in common with actual ones; numbers come from actual ones."""
    size = oracles.lower.size
    if part.program is None:
        return Jacobian(Pattern(False, False, False, False))
    looks = _Looks.of(oracles, part)
    first, pattern, constant = looks.at(looks.actual[0]), looks.pattern(), looks.constant()
    beyond_kinks = part.has_kinks and not constant
    if beyond_kinks:
        pattern = pattern.where(part.structure(oracles))
    if part.gradient_of is not None:
        _require_convex(looks, pattern)
    if pattern.diagonal and constant:
        return Jacobian(pattern, "constant", max(float(np.min(np.asarray(first(np.ones(size))))), 0.0))
    if pattern.diagonal:
        return Jacobian(pattern, "diagonal")
    matrix = looks.matrix(looks.actual[0]) if size <= CONSTANT_DENSE_LIMIT else None
    if matrix is not None:
        pattern = pattern._replace(symmetric=pattern.symmetric and _is_symmetric(matrix))
    skeleton = None if beyond_kinks else looks.skeleton(pattern.symmetric)
    if not constant or (matrix is None and skeleton is None):
        mode = "rank one" if skeleton is not None else "dense" if size <= DENSE_LIMIT else "unknown"
        return Jacobian(pattern, mode, skeleton=skeleton)
    parts = None if skeleton is None else quick_jit(lambda: skeleton.decompose(first, size, pattern.symmetric))()
    if matrix is None and parts is not None:
        least = parts.modulus()
    else:
        least = quick_jit(safe_smallest_eigenvalue)(matrix)
    steepness = math.inf if parts is None else float(parts.steepness())
    return Jacobian(pattern, "constant", float(least), skeleton, parts, steepness)


@dataclass(frozen=True)
class _Looks:
    """Products with J (``at`` a point), and points to look at; ``varied`` are the actual ones with other public parameters."""

    oracles: Oracles
    part: QuadraticPart
    at: Callable[[Probe], Product]
    generic: Sequence[Probe]
    actual: Sequence[Probe]
    varied: Sequence[Probe]

    @classmethod
    def of(cls, oracles: Oracles, part: QuadraticPart) -> _Looks:
        """The product is compiled once for all points."""

        @quick_jit
        def multiply(point: Probe, vector: Array) -> Array:
            def mapping(y: Array) -> Array:
                return part.operator(oracles, point.x, y, point.own, point.rows)

            return jax.jvp(mapping, (jnp.zeros_like(vector),), (vector,))[1]

        def at(point: Probe) -> Product:
            return lambda vector: multiply(point, jnp.asarray(vector, point.x.dtype))

        generic, actual = generic_probes(oracles, part.from_data), actual_probes(oracles, part.from_data)
        public = list(oracles.laid_out().clients.public)
        others = [{leaf: point.own[leaf] for leaf in public} for point in generic] if public else []
        varied = [point._replace(own={**point.own, **own}) for point, own in zip(actual, others)]
        return cls(oracles, part, at, generic, actual, varied)

    @property
    def size(self) -> int:
        return self.oracles.lower.size

    @cached_property
    def matrix(self) -> Callable[[Probe], Any]:
        """J at a point; compiled once for all points."""
        return quick_jit(lambda point: dense(self.at(point), self.size))

    def constant(self) -> bool:
        """Whether J is the same for all x, clients, samples and parameters: none of them enters a product with it.

        Never said of averages over data. What all clients hold alike may enter.
        """
        return not self.part.from_data and not any(self._entering)

    @cached_property
    def _entering(self) -> tuple[bool, bool, bool]:
        """Whether x, public parameters, and what clients hold unlike each other, or elsewhere, enter a product with J."""
        point = self.actual[0]
        leaves, form = jax.tree.flatten((point.x, point.own))

        def product(*values: Any) -> Array:
            x, own = jax.tree.unflatten(form, values)
            return self.at(point._replace(x=x, own=own))(np.ones(self.size))

        closed = jax.make_jaxpr(product)(*map(np.asarray, leaves))
        enters = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[1]
        in_x, in_own = jax.tree.unflatten(form, enters)
        held, away = self.oracles.static_data.clients.parameters, self.oracles.elsewhere
        used = {leaf for leaf, enters in in_own.items() if enters}
        return in_x, bool(used - set(held)), any(away or (held[leaf] != held[leaf][:1]).any() for leaf in used & set(held))

    def pattern(self) -> Pattern:
        """What holds at all points; being positive is asked of actual ones alone, since the sign may be nobody's but theirs."""
        points = [*self.generic, *self.actual]
        seen = [_probe(self.at(point), self.size, seed) for seed, point in enumerate(points)]
        common, positive = reduce(Pattern.where, seen), all(one.positive for one in seen[len(self.generic) :])
        if positive and common.diagonal:
            positive = self.for_all_clients(lambda point: self.at(point)(np.ones(self.size)) > 0)
        return common._replace(positive=positive)

    def skeleton(self, symmetric: bool) -> Skeleton | None:
        """The skeleton of J at one point, if it is J's at the others, and for the other clients, as well."""
        size = self.size
        if not (symmetric or self.oracles.scope == "sample" or not self.oracles.lower_samples):
            return None
        mean = self.oracles.scope == "federation" and self.oracles.num_clients > 1
        if mean and (self.part.from_data or self._entering[2]):  # of maps of rank one, it has another one
            return None
        skeleton = Skeleton.of(self.at(self.actual[0]), size)
        if skeleton is None:
            return None

        def fits(point: Probe) -> tuple[Array, Array]:
            """(Whether J has this skeleton, whether its diagonal is invertible.)"""
            parts = skeleton.decompose(self.at(point), size, symmetric)
            return parts.reproduces(self.at(point)), parts.invertible()

        look = quick_jit(fits)
        if not all(same and invertible for same, invertible in map(look, self.actual)):
            return None
        if not all(same for same, _ in map(look, self.varied)):
            return None
        return skeleton if self.for_all_clients(lambda point: jnp.stack(fits(point))) else None

    def for_all_clients(self, holds: Callable[[Probe], Array]) -> bool:
        """Whether something holds for every client; True where that is open: J has data in it, or clients are too many."""
        oracles, parameters, point = self.oracles, self.oracles.static_data.clients.parameters, self.actual[0]
        many = oracles.num_clients * self.size > SCALARS
        if oracles.scope != "client" or self.part.from_data or many or not parameters:
            return True

        def one(own: dict[int, Array]) -> Array:
            return jnp.all(holds(point._replace(own={**point.own, **own})))

        return bool(quick_jit(lambda: jax.lax.map(one, parameters, batch_size=100).all())())


def _require_convex(looks: _Looks, pattern: Pattern) -> None:
    """CVXPY believes what the user asserts of a matrix; the Hessian at points of X tells."""
    for point in looks.actual:
        if pattern.diagonal:
            values = np.asarray(looks.at(point)(np.ones(looks.size)))
        elif looks.size <= DENSE_LIMIT:
            values = np.linalg.eigvalsh(looks.matrix(point))
        else:
            values = _ritz_values(looks.at(point), looks.size)
        if values.min() < -1e-9 * np.abs(values).max():
            raise NotConvexError(
                f"the quadratic terms of the lower level are not convex in y: their Hessian has the eigenvalue {values.min():.4g} "
                f"at a point of X. Something that was asserted (psd_wrap, assume_PSD, a parameter's PSD=True) does not hold."
            )


def _ritz_values(multiply: Product, size: int) -> np.ndarray:
    """Those of a symmetric map on a Krylov space (Lanczos): between its eigenvalues, the outermost of which they are soon near to."""
    basis, images = np.zeros((2, max(2, min(KRYLOV, SCALARS // size)), size))
    way = np.random.default_rng(0).standard_normal(size)
    for k in range(len(basis)):
        basis[k] = way / np.linalg.norm(way)
        images[k] = way = np.asarray(multiply(basis[k]))
        for _ in range(2):  # once leaves what rounding leaves
            way = way - basis[: k + 1].T @ (basis[: k + 1] @ way)
        if np.linalg.norm(way) <= 1e-12 * np.linalg.norm(images[: k + 1]):
            break
    return np.linalg.eigvalsh(basis[: k + 1] @ images[: k + 1].T)

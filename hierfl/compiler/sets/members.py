"""What a set consists of once its numbers are compiled: bounds of single entries, bands of parallel rows, memberships.

Below them are affine expressions of the flat y and their rows, whose coefficients are found semantically, whatever the expression
looks like. Memberships with constant orthogonal rows have a frame: ``A y + b = d * (W y + b / d)`` with W W' = I.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from jaxtyping import Array, Float, Int

from hierfl.atoms.algebra import nodes_of
from hierfl.atoms.table import row_of
from hierfl.compiler.expressions.program import Program, sparse_times
from hierfl.compiler.sets.families import Family
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.language.printing.text import expression_text
from hierfl.projections.emptiness import beyond

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Origin:
    """The user's constraint and its hoisted copy."""

    written: Constraint
    hoisted: Constraint


def constraints_text(origins: Iterable[Origin]) -> str:
    """The constraints as the user wrote them, each once."""
    return ", ".join(dict.fromkeys(expression_text(origin.written) for origin in origins))


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The matrix at two random values of the parameters, in the flat (C-order) y; rows in Fortran order of the expression."""

    draws: tuple[sp.csr_array, sp.csr_array]

    @cached_property
    def constant(self) -> bool:
        first, second = self.draws
        return (abs(first - second) > 1e-12 * abs(first)).nnz == 0  # entry by entry: some may be large

    @cached_property
    def matrix(self) -> sp.csr_array:
        """The matrix; where it moves, absolute values that show the union of the patterns."""
        first, second = self.draws
        matrix = first if self.constant else sp.csr_array(abs(first) + abs(second))
        matrix.eliminate_zeros()
        matrix.sort_indices()
        return matrix

    def mapped(self, coordinates: sp.csr_array) -> Coefficients:
        first, second = (sp.csr_array(coordinates @ draw) for draw in self.draws)
        return Coefficients((first, second))


Draw = Sequence[np.ndarray]  # a value for each hoisted parameter


def random_draw(trees: Sequence[Expression], parameters: Sequence[cp.Parameter], seed: int) -> Draw:
    """Values of the hoisted parameters at random values of the leaves below them, so that their relations hold.

    An atom with branches has a random value of its own, since two draws may see but one of its branches. Where a tree is
    outside its domain there, its parameter gets a random value of the right sign instead.
    """
    rng = np.random.default_rng(seed)
    leaves = {leaf.id: leaf for tree in trees for leaf in [*tree.variables(), *tree.parameters()]}
    branching = [node for tree in trees for node in nodes_of(tree) if row_of(node).branches(node)]
    program = Program([*branching, *trees])
    at = {leaf: _random_value(leaves[leaf], rng) for leaf in sorted(leaves)}
    drawn = dict(zip(program.places, [_random_value(node, rng) for node in branching]))
    values = quick_jit(program)(at, given=drawn)[len(branching) :]
    independent = [_random_value(parameter, rng) for parameter in parameters]
    return [np.asarray(v) if np.isfinite(v).all() else other for v, other in zip(values, independent)]


def _random_value(node: Expression, rng: np.random.Generator) -> np.ndarray:
    value = rng.standard_normal(node.shape)
    if node.ndim == 2 and (node.is_psd() or node.is_nsd()):
        return np.asarray(value @ value.T * (1.0 if node.is_psd() else -1.0))
    if node.is_nonneg():
        return np.abs(value) + 0.1
    if node.is_nonpos():
        return -np.abs(value) - 0.1
    return np.asarray(value + value.T if node.is_symmetric() else value)


def matrix_at(draw: Mapping[int, np.ndarray], expression: Expression, places: Mapping[int, np.ndarray], size: int) -> sp.csr_array:
    """The coefficients of an affine expression in a flat decision of some size, at a draw of the parameters; by ids, as the places of entries."""
    for parameter in expression.parameters():
        parameter.save_value(draw[parameter.id])
    for variable in expression.variables():
        variable.save_value(np.zeros(variable.shape))
    parts = []
    for variable, slope in expression.grad.items():  # in CVXPY's order, entries of the variable by those of the expression
        own = sp.coo_array(slope if sp.issparse(slope) else np.reshape(slope, (variable.size, expression.size)))
        parts.append((own.data, own.coords[1], np.ravel(places[variable.id], order="F")[own.coords[0]]))
    values, rows, columns = map(np.concatenate, zip(*parts)) if parts else np.zeros((3, 0), int)
    matrix = sp.csr_array((values, (rows, columns)), (expression.size, size), dtype=float)
    matrix.eliminate_zeros()
    return matrix


Values = Mapping[int, Array]  # hoisted parameter id -> its value in an environment

DENSE_ENTRIES = 4_000_000  # larger matrices are not formed densely


@dataclass(frozen=True, eq=False)
class AffineMap:
    """A compiled affine expression of the flat y: ``evaluate(values, y)`` (y = 0 where left out) and its coefficients."""

    evaluate: Callable[..., Array]
    coefficients: Coefficients
    fixed: Float[np.ndarray, " rows"] | None  # the offsets, where no parameter enters the expression at all

    @property
    def width(self) -> int:
        return int(self.coefficients.matrix.shape[1])


@dataclass(frozen=True, eq=False)
class CompiledRows:
    """Some rows ``A y + b`` of an affine map."""

    source: AffineMap
    index: Int[np.ndarray, " rows"]

    @cached_property
    def pattern(self) -> sp.csr_array:
        """Coefficients of these rows (absolute values that show the pattern where they are not constant)."""
        return self.source.coefficients.matrix[self.index]

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(columns, numbers, how many) of a single row, without a matrix of its own: there may be ten thousand of them."""
        matrix, (row,) = self.source.coefficients.matrix, self.index
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        return matrix.indices[part], matrix.data[part], np.array([part.stop - part.start])

    @property
    def constant(self) -> bool:
        return self.source.coefficients.constant

    def offsets(self, values: Values) -> Float[Array, " rows"]:
        """The vector b of ``A y + b``."""
        return self._at(values) if self.source.fixed is None else jnp.asarray(self.source.fixed[self.index], float)

    def sums(self, values: Values) -> Float[Array, " rows"]:
        """The product A @ 1, which for single-entry rows is the coefficient itself."""
        zero = jnp.zeros(self.source.width)
        return jax.jvp(lambda y: self._at(values, y), (zero,), (jnp.ones_like(zero),))[1]

    def coefficients(self, values: Values) -> Float[Array, " nonzeros"]:
        """The nonzero coefficients in the order of ``pattern``, for rows with disjoint supports."""
        pattern = self.pattern
        if self.constant:
            return jnp.asarray(pattern.data, float)
        sums = jax.grad(lambda y: jnp.sum(self._at(values, y)))(jnp.zeros(self.source.width))
        return sums[pattern.indices.astype(np.int32)]  # each column meets one row, so its sum is the coefficient

    def dense(self, values: Values, entries: Int[np.ndarray, " n"]) -> Float[np.ndarray | Array, "rows n"]:
        if self.constant:
            return np.asarray(self.pattern[:, entries].toarray())

        def on_entries(part: Array) -> Array:
            return self._at(values, jnp.zeros(self.source.width).at[entries.astype(np.int32)].set(part))

        jacobian = jax.jacrev if len(self.index) < len(entries) else jax.jacfwd
        return jacobian(on_entries)(jnp.zeros(len(entries)))

    @classmethod
    def joined(cls, rows: Sequence[CompiledRows]) -> CompiledRows:
        """Rows of one map, which is then evaluated once."""
        return cls(rows[0].source, np.concatenate([own.index for own in rows]))

    def _at(self, values: Values, y: Float[Array, " size"] | None = None) -> Float[Array, " rows"]:
        return self.source.evaluate(values, y)[self.index.astype(np.int32)]  # 64-bit indices fail in single precision


def together(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Those with the same key together, in the order in which keys first appear."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


@dataclass(frozen=True, eq=False)
class EntryBounds:
    """Rows of one entry each, ``a y_j + b <= 0`` (or ``== 0``)."""

    origin: Origin
    rows: CompiledRows
    equality: bool

    @cached_property
    def columns(self) -> Int[np.ndarray, " rows"]:
        return self.rows.pattern.indices

    @cached_property
    def fixed(self) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]] | None:
        """(low, high) of each row, computed once; None where parameters enter."""
        if not self.rows.constant or self.rows.source.fixed is None:
            return None
        slope, offset = self.rows.pattern.data, self.rows.source.fixed[self.rows.index]
        with np.errstate(over="ignore"):
            limit = -offset / np.where(slope == 0, 1.0, slope) + 0.0  # never -0
        low, high = _one_sided(np, slope, limit, self.equality)
        return low, high

    def on(self, entries: Int[np.ndarray, " n"]) -> EntryBounds | None:
        """Those that bound one of the entries; None if there are none."""
        inside = np.flatnonzero(np.isin(self.columns, entries))
        if not inside.size:
            return None
        return EntryBounds(self.origin, CompiledRows(self.rows.source, self.rows.index[inside]), self.equality)

    @classmethod
    def joined(cls, bounds: Sequence[EntryBounds]) -> tuple[EntryBounds, ...]:
        """The same bounds with those of one source and kind together."""
        alike = together(bounds, lambda bound: (id(bound.rows.source), bound.equality))
        joined = ((same[0], CompiledRows.joined([bound.rows for bound in same])) for same in alike)
        return tuple(cls(first.origin, rows, first.equality) for first, rows in joined)


def places_among(entries: Int[np.ndarray, " n"], columns: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
    """Where each of some columns is among the entries."""
    order = np.argsort(entries)
    return order[np.searchsorted(entries, columns, sorter=order)].astype(np.int32)  # 64-bit indices fail in single precision


def limits(
    bounds: Sequence[EntryBounds], entries: Int[np.ndarray, " n"], values: Values
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, ""]]:
    """(lower, upper) of the entries (-inf, inf where free), and the violation of rows whose coefficient vanishes."""
    lowest, highest = np.full(len(entries), -np.inf), np.full(len(entries), np.inf)
    places = [places_among(entries, bound.columns) for bound in bounds]
    for bound, where in zip(bounds, places):
        if bound.fixed is not None:
            np.maximum.at(lowest, where, bound.fixed[0])
            np.minimum.at(highest, where, bound.fixed[1])
    lower, upper, broken = jnp.asarray(lowest, float), jnp.asarray(highest, float), jnp.asarray(-jnp.inf)
    for bound, where in zip(bounds, places):
        if bound.fixed is None:
            a = jnp.asarray(bound.rows.pattern.data, float) if bound.rows.constant else bound.rows.sums(values)
            low, high, violation = _interval(a, bound.rows.offsets(values), bound.equality)
            lower, upper = lower.at[where].max(low), upper.at[where].min(high)
            if not bound.rows.constant:
                broken = jnp.maximum(broken, beyond(jnp.max(violation)))
    return lower, upper, broken


def _interval(
    a: Float[Array, " rows"], b: Float[Array, " rows"], equality: bool
) -> tuple[Float[Array, " rows"], Float[Array, " rows"], Float[Array, " rows"]]:
    """The interval of t that ``a t + b <= 0`` (or ``== 0``) allows, and the violation where a = 0 (else -inf)."""
    limit = -b / jnp.where(a == 0, 1.0, a)
    limit = limit - jax.lax.stop_gradient(jnp.where(limit == 0, limit, 0.0))  # never -0, and its derivative kept
    return *_one_sided(jnp, a, limit, equality), jnp.where(a == 0, jnp.abs(b) if equality else b, -jnp.inf)


def _one_sided(xp: Any, a: Any, limit: Any, equality: bool) -> tuple[Any, Any]:
    """(low, high): the limit where the slope bounds that side; ``xp`` is NumPy or its namesake in JAX."""
    bounded_above = (a != 0) if equality else (a > 0)
    bounded_below = (a != 0) if equality else (a < 0)
    return xp.where(bounded_below, limit, -np.inf), xp.where(bounded_above, limit, np.inf)


@dataclass(frozen=True, eq=False)
class Side:
    """One row ``factor * a'y + b <= 0`` (or ``== 0``) of a band with normal a."""

    origin: Origin
    row: CompiledRows
    factor: float
    equality: bool


@dataclass(frozen=True, eq=False)
class Band:
    """Parallel rows together: ``low <= a'y <= high`` with the first side's row as the normal a."""

    sides: tuple[Side, ...]

    @property
    def normal(self) -> CompiledRows:
        return self.sides[0].row

    @property
    def support(self) -> Int[np.ndarray, " n"]:
        """Entries with a coefficient, sorted."""
        return self.normal.entries[0]

    @property
    def constant(self) -> bool:
        return self.normal.constant

    @property
    def equality(self) -> bool:
        return any(side.equality for side in self.sides)

    @property
    def one_sided(self) -> bool:
        return not self.equality and len({np.sign(side.factor) for side in self.sides}) == 1

    @property
    def origins(self) -> list[Origin]:
        return [side.origin for side in self.sides]


@dataclass(frozen=True, eq=False)
class Bands:
    """Several bands as arrays; ``low`` and ``high`` (k,) bound ``A y`` without offsets."""

    members: tuple[Band, ...]

    @cached_property
    def _normals(self) -> tuple[tuple[CompiledRows, ...], Int[np.ndarray, " k"]]:
        """Normals by source, and the place of each band among them."""
        alike = together(enumerate(self.members), lambda one: id(one[1].normal.source))
        places = np.argsort([place for same in alike for place, _ in same])
        rows = tuple(CompiledRows.joined([band.normal for _, band in same]) for same in alike)
        return rows, places.astype(np.int32)  # 64-bit indices fail in single precision

    @cached_property
    def _sides(self) -> list[tuple[CompiledRows, np.ndarray, np.ndarray, bool]]:
        """(rows, factors, bands, equality) by source and kind."""
        sides = [(place, side) for place, band in enumerate(self.members) for side in band.sides]
        return [
            (
                CompiledRows.joined([side.row for _, side in same]),
                np.array([side.factor for _, side in same]),
                np.array([place for place, _ in same]),
                same[0][1].equality,
            )
            for same in together(sides, lambda one: (id(one[1].row.source), one[1].equality))
        ]

    def interval(self, values: Values) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        low = jnp.full(len(self.members), -jnp.inf)
        high = jnp.full(len(self.members), jnp.inf)
        for rows, factors, places, equality in self._sides:
            below, above, _ = _interval(jnp.asarray(factors, float), rows.offsets(values), equality)
            narrow = places.astype(np.int32)  # 64-bit indices fail in single precision
            low, high = low.at[narrow].max(below), high.at[narrow].min(above)
        return low, high

    def dense(self, values: Values, entries: Int[np.ndarray, " n"]) -> Float[np.ndarray | Array, "k n"]:
        """The normals, of NumPy where they are constant."""
        rows, order = self._normals
        return (np if self.constant else jnp).concatenate([r.dense(values, entries) for r in rows])[order]

    def coefficients(self, values: Values) -> tuple[np.ndarray, Float[Array, " nonzeros"]]:
        """(entries of y, their weights), for disjoint supports or constant normals."""
        rows, _ = self._normals
        return np.concatenate([r.pattern.indices for r in rows]), jnp.concatenate([r.coefficients(values) for r in rows])

    @property
    def origins(self) -> list[Origin]:
        return [origin for band in self.members for origin in band.origins]

    @property
    def constant(self) -> bool:
        return all(band.constant for band in self.members)


@dataclass(frozen=True, eq=False)
class CompiledMembership:
    """``A y + b in C_r`` for one group of rows; ``radius(values)`` (G,) bounds all groups of its constraint; None for a cone."""

    origin: Origin
    family: Family
    rows: CompiledRows
    radius: Callable[[Values], Array] | None
    group: int
    squared: bool

    @cached_property
    def support(self) -> Int[np.ndarray, " n"]:
        """Entries of y that take part, sorted."""
        return np.unique(self.rows.pattern.indices)

    @property
    def pattern(self) -> sp.csr_array:
        return self.rows.pattern

    @property
    def constant(self) -> bool:
        return self.rows.constant

    @property
    def origins(self) -> list[Origin]:
        return [self.origin]


@dataclass(frozen=True, eq=False)
class Opaque:
    """A constraint without a closed form, on these entries of y."""

    origin: Origin
    reason: str
    pattern: sp.csr_array
    constant: bool = False

    @classmethod
    def on(cls, origin: Origin, reason: str, support: Int[np.ndarray, " n"], size: int) -> Opaque:
        """The member; its pattern is a row per entry."""
        ones, rows = np.ones(len(support)), np.arange(len(support))
        return cls(origin, reason, sp.csr_array((ones, (rows, support)), shape=(len(support), size)))

    @property
    def support(self) -> Int[np.ndarray, " n"]:
        """Entries of y that the constraint mentions."""
        return self.pattern.indices

    @property
    def origins(self) -> list[Origin]:
        return [self.origin]


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates of memberships; ``entries`` are those of the flat y in the order of ``into`` and ``back``.

    ``turn`` is W: the signs of single entries, where each row has one of its own, else a sparse matrix (k, entries).
    """

    entries: Int[np.ndarray, " n"]
    rows: tuple[CompiledRows, ...]  # those of one affine map after another
    scales: Float[np.ndarray, "G k"]  # d
    turn: Float[np.ndarray, "G k"] | sp.csr_array

    @classmethod
    def of(cls, memberships: Sequence[CompiledMembership]) -> Frame | None:
        """The frame of memberships of one size, those of a constraint together; None where rows move, or are not orthogonal."""
        rows = tuple(CompiledRows.joined([m.rows for m in same]) for same in by_source(memberships))
        if not all(own.constant for own in rows):
            return None
        columns = np.concatenate([own.pattern.indices for own in rows])
        if all(map(has_single_entries, rows)) and len(np.unique(columns)) == len(columns):
            weights = np.concatenate([own.pattern.data for own in rows]).reshape(len(memberships), -1)
            return cls(columns, rows, np.abs(weights), np.sign(weights))
        if len(memberships) > 1:
            return None
        entries = memberships[0].support
        matrix = sp.csr_array(rows[0].pattern[:, entries])
        norms = _norms_if_orthogonal(matrix)
        return (
            None if norms is None else cls(entries, rows, norms[None], sp.csr_array(sp.diags_array(1 / norms) @ matrix))
        )

    @property
    def is_square(self) -> bool:
        """Whether W is orthogonal: y is determined by its coordinates."""
        return self.scales.size == len(self.entries)

    def offset(self, values: Values) -> Float[Array, "G k"]:
        """The part b / d."""
        offsets = jnp.concatenate([own.offsets(values) for own in self.rows]).reshape(self.scales.shape)
        return offsets / jnp.asarray(self.scales, offsets.dtype)

    def into(self, z: Float[Array, " n"]) -> Float[Array, "G k"]:
        """The coordinates W z."""
        if isinstance(self.turn, np.ndarray):
            return jnp.asarray(self.turn, z.dtype) * z.reshape(self.turn.shape)
        return sparse_times(self.turn, z)[None]

    def back(self, v: Float[Array, "G k"]) -> Float[Array, " n"]:
        """The point W' v."""
        if isinstance(self.turn, np.ndarray):
            return (jnp.asarray(self.turn, v.dtype) * v).ravel()
        return sparse_times(sp.csr_array(self.turn.T), v[0])


def by_source(memberships: Sequence[CompiledMembership]) -> list[list[CompiledMembership]]:
    """Memberships by the constraint that they are of, whose groups share one affine map."""
    return together(memberships, lambda membership: id(membership.rows.source))


def has_single_entries(rows: CompiledRows) -> bool:
    """Whether each row has one entry of y."""
    return bool((np.diff(rows.pattern.indptr) == 1).all())


def _norms_if_orthogonal(matrix: sp.csr_array) -> Float[np.ndarray, " rows"] | None:
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    if not lengths.size or (lengths == 0).any():
        return None
    unit = sp.csr_array(sp.diags_array(1.0 / lengths) @ matrix)
    gram = sp.csr_array(unit @ unit.T)
    off = gram - sp.diags_array(gram.diagonal())
    return lengths if off.nnz == 0 or abs(off).max() <= 1e-12 else None

"""The kinds of blocks: each a closed-form projection whose numbers are computed from the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.program import Array
from hierfl.compiler.recognise import AffineRows, Coefficients, NormBound, Other
from hierfl.language.text import expression_text
from hierfl.projections import affine, ball, box, halfspace, simplex

Values = Mapping[int, Any]
_DENSE_ENTRIES = 4_000_000


class Block(Protocol):
    """A projection of some entries of the flat vector."""

    @property
    def kind(self) -> str:
        """``"box"``, ``"ball"``, ..."""

    @property
    def entries(self) -> np.ndarray:
        """Places in the flat vector."""

    def project(self, z: Array, values: Values) -> Array:
        """Project these entries."""

    def gap(self, values: Values) -> Array:
        """Positive when empty."""

    def explain(self) -> str:
        """What was recognised."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A recognised piece of one constraint, its coefficients and offsets compiled; ``support`` lists its entries of y."""

    original: Any
    constraint: Any
    found: AffineRows | NormBound | Other
    coefficients: Coefficients | None
    offsets: Callable[..., Array] | None
    radius: Callable[..., Array] | None
    support: np.ndarray


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of an affine piece: ``A y + b <= 0`` or ``== 0``."""

    piece: Piece
    index: np.ndarray
    equality: bool

    @property
    def pattern(self) -> sp.csr_array:
        """Coefficients of these rows (a pattern where they are not constant)."""
        assert self.piece.coefficients is not None
        return self.piece.coefficients.matrix[self.index]

    @property
    def columns(self) -> np.ndarray:
        """The entry of each row, for rows of one entry."""
        return self.pattern.indices

    @property
    def constant(self) -> bool:
        """Whether the coefficients are the same in every environment."""
        assert self.piece.coefficients is not None
        return self.piece.coefficients.constant

    def b(self, values: Values) -> Array:
        """Offsets."""
        assert self.piece.offsets is not None
        return self.piece.offsets(values)[self.index]

    def row_sums(self, values: Values) -> Array:
        """A @ 1, which for single-entry rows is the coefficient itself."""
        assert self.piece.offsets is not None and self.piece.coefficients is not None
        ones = jnp.ones(self.piece.coefficients.matrix.shape[1])
        return self.piece.offsets(values, ones)[self.index] - self.b(values)

    def dense(self, values: Values, entries: np.ndarray) -> Array:
        """The rows' matrix on ``entries``."""
        if self.constant:
            return jnp.asarray(self.pattern[:, entries].toarray())
        assert self.piece.offsets is not None and self.piece.coefficients is not None
        offsets, size = self.piece.offsets, self.piece.coefficients.matrix.shape[1]

        def on_entries(part: Array) -> Array:
            return offsets(values, jnp.zeros(size).at[entries].set(part))[self.index]

        return jax.jacfwd(on_entries)(jnp.zeros(len(entries)))


@dataclass(frozen=True, eq=False)
class ConditionBlock:
    """A condition that no entry of y takes part in: it can only make the set empty."""

    rows: Rows
    kind: str = "condition"

    @property
    def entries(self) -> np.ndarray:
        """None."""
        return np.zeros(0, int)

    def project(self, z: Array, values: Values) -> Array:
        """Nothing to move."""
        return z

    def gap(self, values: Values) -> Array:
        """The violation of the condition."""
        b = self.rows.b(values)
        return jnp.max(jnp.abs(b) if self.rows.equality else b)

    def explain(self) -> str:
        """The condition."""
        return f"condition on x: {_names([self.rows.piece])}"


@dataclass(frozen=True, eq=False)
class BoxBlock:
    """Entries with bounds only; the bounds may move."""

    entries: np.ndarray
    bounds: tuple[Rows, ...]
    kind: str = "box"

    def limits(self, values: Values) -> tuple[Array, Array, Array]:
        """(lower, upper) of the entries, and the violation of rows whose coefficient vanishes."""
        place = {int(e): k for k, e in enumerate(self.entries)}
        lower = jnp.full(len(self.entries), -jnp.inf)
        upper = jnp.full(len(self.entries), jnp.inf)
        broken = jnp.asarray(-jnp.inf)
        for rows in self.bounds:
            mine = np.flatnonzero(np.isin(rows.columns, self.entries))
            if not mine.size:
                continue
            where = np.array([place[int(c)] for c in rows.columns[mine]])
            a = jnp.asarray(rows.pattern.data[mine]) if rows.constant else rows.row_sums(values)[mine]
            b = rows.b(values)[mine]
            limit = -b / jnp.where(a == 0, 1.0, a)
            limit = jnp.where(limit == 0, 0.0, limit)  # never a negative zero
            above = jnp.where(a > 0, limit, jnp.inf)
            below = jnp.where(a < 0, limit, -jnp.inf)
            if rows.equality:
                above = below = jnp.where(a != 0, limit, above)
                below = jnp.where(a != 0, limit, -jnp.inf)
            upper = upper.at[where].min(above)
            lower = lower.at[where].max(below)
            if not rows.constant:
                broken = jnp.maximum(broken, jnp.max(jnp.where(a == 0, jnp.abs(b) if rows.equality else b, -jnp.inf)))
        return lower, upper, broken

    def project(self, z: Array, values: Values) -> Array:
        """Clip."""
        lower, upper, _ = self.limits(values)
        return box.project(z, lower, upper)

    def gap(self, values: Values) -> Array:
        """max(lower - upper)."""
        lower, upper, broken = self.limits(values)
        return jnp.maximum(box.gap(lower, upper), broken)

    def explain(self) -> str:
        """The constraints behind the bounds."""
        return f"box, by clipping: {_names(rows.piece for rows in self.bounds)}"


@dataclass(frozen=True, eq=False)
class BallBlock:
    """A Euclidean ball: ||A y + b|| <= r with A'A a multiple of the identity."""

    entries: np.ndarray
    piece: Piece
    alpha: float
    matrix: sp.csr_array
    kind: str = "ball"

    @classmethod
    def of(cls, piece: Piece, entries: np.ndarray) -> BallBlock | None:
        """The block, or None where the set is an ellipsoid or its shape moves."""
        assert piece.coefficients is not None
        if not piece.coefficients.constant:
            return None
        matrix = piece.coefficients.matrix[:, entries]
        gram = sp.csr_array(matrix.T @ matrix)
        diagonal = gram.diagonal()
        if (
            np.ptp(diagonal) > 1e-12 * diagonal.max()
            or abs(gram - sp.diags_array(diagonal)).max() > 1e-12 * diagonal.max()
        ):
            return None
        return cls(entries, piece, float(np.sqrt(diagonal[0])), matrix)

    def _centre_radius(self, values: Values) -> tuple[Array, Array, Array]:
        assert (
            self.piece.offsets is not None and self.piece.radius is not None and isinstance(self.piece.found, NormBound)
        )
        b = self.piece.offsets(values)
        right = self.piece.radius(values)[0]
        rows, columns = self.matrix.nonzero()
        weights = jnp.asarray(self.matrix.tocsr()[rows, columns])
        centre = -jnp.zeros(len(self.entries)).at[columns].add(weights * b[rows]) / self.alpha**2
        missing = (
            jnp.sum(b * b) - self.alpha**2 * jnp.sum(centre * centre)
            if self.matrix.shape[0] > len(self.entries)
            else 0.0
        )
        square = (right if self.piece.found.squared else right * jnp.abs(right)) - missing
        return centre, jnp.sqrt(jnp.maximum(square, 0.0)) / self.alpha, square

    def project(self, z: Array, values: Values) -> Array:
        """Shrink towards the centre."""
        centre, radius, _ = self._centre_radius(values)
        return ball.project(z, centre, radius)

    def gap(self, values: Values) -> Array:
        """-radius^2, positive for an empty ball."""
        return ball.gap(self._centre_radius(values)[2])

    def explain(self) -> str:
        """The constraint behind the ball."""
        return f"Euclidean ball, by scaling: {_names([self.piece])}"


@dataclass(frozen=True, eq=False)
class HalfspaceBlock:
    """One halfspace."""

    entries: np.ndarray
    rows: Rows
    kind: str = "halfspace"

    def project(self, z: Array, values: Values) -> Array:
        """One step along the normal."""
        return halfspace.project(z, self.rows.dense(values, self.entries)[0], self.rows.b(values)[0])

    def gap(self, values: Values) -> Array:
        """Positive when the normal vanishes and the offset is positive."""
        return halfspace.gap(self.rows.dense(values, self.entries)[0], self.rows.b(values)[0])

    def explain(self) -> str:
        """The constraint behind the halfspace."""
        return f"halfspace: {_names([self.rows.piece])}"


@dataclass(frozen=True, eq=False)
class DisjointHalfspacesBlock:
    """Many halfspaces with constant normals and disjoint supports, all at once."""

    entries: np.ndarray
    members: tuple[Rows, ...]
    kind: str = "halfspace"

    def project(self, z: Array, values: Values) -> Array:
        """One step along each normal."""
        matrix = sp.coo_array(sp.vstack([rows.pattern[:, self.entries] for rows in self.members]))
        row, column = matrix.coords
        return halfspace.project_disjoint(
            z, jnp.asarray(row), jnp.asarray(column), jnp.asarray(matrix.data), self._offsets(values)
        )

    def _offsets(self, values: Values) -> Array:
        return jnp.concatenate([rows.b(values) for rows in self.members])

    def gap(self, values: Values) -> Array:
        """Never empty."""
        return jnp.asarray(-jnp.inf)

    def explain(self) -> str:
        """The constraints behind the halfspaces."""
        return f"{len(self.members)} disjoint halfspaces: {_names(rows.piece for rows in self.members)}"


@dataclass(frozen=True, eq=False)
class AffineBlock:
    """Equations A y + b = 0."""

    entries: np.ndarray
    rows: tuple[Rows, ...]
    factor: affine.Factor | None
    kind: str = "affine"

    @classmethod
    def of(cls, entries: np.ndarray, rows: Sequence[Rows]) -> AffineBlock | None:
        """The block, factorised now if its matrix is constant; None if it is too large for a dense factor."""
        if len(entries) * len(rows) > _DENSE_ENTRIES:
            return None
        if not all(r.constant for r in rows):
            return cls(entries, tuple(rows), None)
        return cls(entries, tuple(rows), affine.factorise(sp.vstack([r.pattern[:, entries] for r in rows]).toarray()))

    def _system(self, values: Values) -> tuple[affine.Factor, Array]:
        b = jnp.concatenate([rows.b(values) for rows in self.rows])
        if self.factor is not None:
            return self.factor, b
        return affine.factorise_traced(jnp.concatenate([rows.dense(values, self.entries) for rows in self.rows])), b

    def project(self, z: Array, values: Values) -> Array:
        """Orthogonal projection on the solutions."""
        return affine.project(z, *self._system(values))

    def gap(self, values: Values) -> Array:
        """Positive when the equations contradict each other."""
        return affine.gap(*self._system(values))

    def explain(self) -> str:
        """The equations."""
        how = "factorised once" if self.factor is not None else "factorised for each environment"
        return f"affine set, {how}: {_names(rows.piece for rows in self.rows)}"


@dataclass(frozen=True, eq=False)
class SimplexBlock:
    """y >= 0 and scale * sum(y) + b = 0."""

    entries: np.ndarray
    row: Rows
    scale: float
    kind: str = "simplex"

    def _total(self, values: Values) -> Array:
        return -self.row.b(values)[0] / self.scale

    def project(self, z: Array, values: Values) -> Array:
        """By sorting."""
        return simplex.project(z, self._total(values))

    def gap(self, values: Values) -> Array:
        """Positive for a negative total."""
        return simplex.gap(self._total(values))

    def explain(self) -> str:
        """The equation behind the simplex."""
        return f"simplex, by sorting: {_names([self.row.piece])} and nonnegativity"


def _names(pieces: Any) -> str:
    return ", ".join(dict.fromkeys(expression_text(piece.original) for piece in pieces))

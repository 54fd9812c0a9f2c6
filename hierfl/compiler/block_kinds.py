"""The kinds of blocks: each a closed-form projection whose numbers are computed from the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.pieces import Piece, Rows, Values, constraint_names, merged
from hierfl.compiler.program import Array
from hierfl.compiler.recognise import NormBound
from hierfl.projections import affine, ball, box, halfspace, simplex

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
        return f"condition on x: {constraint_names([self.rows.piece])}"


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
        return f"box, by clipping: {constraint_names(rows.piece for rows in self.bounds)}"


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
        """(centre, radius, how far the set is from empty): ||A y + b|| <= r is ||y - c|| <= sqrt(r^2 - ||A c + b||^2) / alpha."""
        found = self.piece.found
        assert self.piece.offsets is not None and self.piece.radius is not None and isinstance(found, NormBound)
        b = self.piece.offsets(values)
        right = self.piece.radius(values)
        coordinates = self.matrix.tocoo()
        rows, columns = coordinates.coords
        weights = jnp.asarray(coordinates.data)
        centre = -jnp.zeros(len(self.entries)).at[columns].add(weights * b[rows]) / self.alpha**2
        if self.matrix.shape[0] == len(self.entries):
            return centre, (_safe_sqrt(right) if found.squared else jnp.maximum(right, 0.0)) / self.alpha, right
        # the residual itself, not ||b||^2 - alpha^2 ||c||^2, which cancels for a far centre
        residual = b.at[rows].add(weights * centre[columns])
        missing = jnp.sum(residual * residual)
        if found.squared:
            return centre, _safe_sqrt(right - missing) / self.alpha, right - missing
        square = right * jnp.abs(right) - missing
        return centre, _safe_sqrt(square) / self.alpha, right - jnp.sqrt(missing)

    def project(self, z: Array, values: Values) -> Array:
        """Shrink towards the centre."""
        centre, radius, _ = self._centre_radius(values)
        return ball.project(z, centre, radius)

    def gap(self, values: Values) -> Array:
        """What the radius (its square, for a bound on squares) lacks: positive for an empty ball."""
        return ball.gap(self._centre_radius(values)[2])

    def explain(self) -> str:
        """The constraint behind the ball."""
        return f"Euclidean ball, by scaling: {constraint_names([self.piece])}"


@dataclass(frozen=True, eq=False)
class DisjointRowsBlock:
    """Halfspaces, or hyperplanes, with disjoint supports, all at once."""

    entries: np.ndarray
    members: tuple[Rows, ...]
    equality: bool

    @property
    def kind(self) -> str:
        """``"affine"`` for hyperplanes."""
        return "affine" if self.equality else "halfspace"

    def project(self, z: Array, values: Values) -> Array:
        """One step along each normal."""
        rows, columns, weights, b = self._system(values)
        return halfspace.project(z, rows, columns, weights, b, self.equality)

    def gap(self, values: Values) -> Array:
        """Positive when a normal vanishes and its offset forbids that; never for constant normals."""
        if all(rows.constant for rows in self.members):
            return jnp.asarray(-jnp.inf)
        rows, _, weights, b = self._system(values)
        return halfspace.gap(rows, weights, b, self.equality)

    def _system(self, values: Values) -> tuple[Array, Array, Array, Array]:
        """(rows, columns, weights) of the normals as coordinate triples, and the offsets."""
        patterns = [rows.pattern for rows in self.members]
        counts = np.concatenate([np.diff(pattern.indptr) for pattern in patterns])
        row = np.repeat(np.arange(len(counts)), counts)
        column = np.searchsorted(self.entries, np.concatenate([pattern.indices for pattern in patterns]))
        weights = jnp.concatenate([rows.weights(values) for rows in self.members])
        b = jnp.concatenate([rows.b(values) for rows in self.members])
        return jnp.asarray(row), jnp.asarray(column), weights, b

    def explain(self) -> str:
        """The constraints behind the rows."""
        count = sum(len(rows.index) for rows in self.members)
        what = "hyperplane" if self.equality else "halfspace"
        what = what if count == 1 else f"{count} disjoint {what}s"
        return f"{what}: {constraint_names(rows.piece for rows in self.members)}"


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
        rows = merged(rows)
        if len(entries) * sum(len(r.index) for r in rows) > _DENSE_ENTRIES:
            return None
        if not all(r.constant for r in rows):
            return cls(entries, rows, None)
        return cls(entries, rows, affine.factorise(sp.vstack([r.pattern[:, entries] for r in rows]).toarray()))

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
        return f"affine set, {how}: {constraint_names(rows.piece for rows in self.rows)}"


@dataclass(frozen=True, eq=False)
class SimplexBlock:
    """Simplices of one size, side by side: y >= 0 and scale * sum(y) + b = 0 for each of the ``groups`` (k, size)."""

    groups: np.ndarray
    rows: tuple[Rows, ...]
    scales: np.ndarray
    kind: str = "simplex"

    @classmethod
    def of(cls, members: Sequence[tuple[np.ndarray, Rows]]) -> list[SimplexBlock]:
        """The blocks of simplices given as (entries, equation): one for each piece and size."""
        alike: dict[tuple[int, int], list[tuple[np.ndarray, Rows]]] = {}
        for entries, row in members:
            alike.setdefault((id(row.piece), len(entries)), []).append((entries, row))
        return [
            cls(
                np.stack([entries for entries, _ in same]),
                merged(row for _, row in same),
                np.array([row.pattern.data[0] for _, row in same]),
            )
            for same in alike.values()
        ]

    @property
    def entries(self) -> np.ndarray:
        """All groups, one after another."""
        return self.groups.ravel()

    def _totals(self, values: Values) -> Array:
        return -jnp.concatenate([rows.b(values) for rows in self.rows]) / jnp.asarray(self.scales)

    def project(self, z: Array, values: Values) -> Array:
        """By sorting."""
        return jax.vmap(simplex.project)(z.reshape(self.groups.shape), self._totals(values)).ravel()

    def gap(self, values: Values) -> Array:
        """Positive for a negative total."""
        return jnp.max(simplex.gap(self._totals(values)))

    def explain(self) -> str:
        """The equations behind the simplices."""
        what = "simplex" if len(self.groups) == 1 else f"{len(self.groups)} simplices"
        return f"{what}, by sorting: {constraint_names(rows.piece for rows in self.rows)} and nonnegativity"


def _safe_sqrt(square: Array) -> Array:
    """sqrt(max(square, 0)) with derivative 0, not NaN, where it is not positive."""
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)

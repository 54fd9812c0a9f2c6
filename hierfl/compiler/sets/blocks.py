"""The projections on the components of a set, and the choice between them: the decision table of the compiler.

A new kind of set is a class here and a place in ``KINDS``, before the more general kinds that would take its components: beside what is asked of
every ``Block`` it has ``alike``, a key that components for one block have in common (None where one is of another kind), and ``of``, which makes
one block of those (None where there is none).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.atoms.numerics.safe import steep
from hierfl.compiler import parametric
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.sets.components import Component, Member, components
from hierfl.compiler.sets.families import Family
from hierfl.compiler.sets.members import (
    DENSE_ENTRIES,
    Band,
    Bands,
    CompiledMembership,
    CompiledRows,
    EntryBounds,
    Frame,
    Opaque,
    Origin,
    Values,
    by_source,
    constraints_text,
    has_single_entries,
    limits,
    places_among,
)
from hierfl.errors import NotConvexError, UnsupportedAtomError
from hierfl.language.function import user_code_in
from hierfl.projections import affine, box, box_with_hyperplane, polyhedron
from hierfl.projections.emptiness import beyond, not_below_zero

ROW_LIMIT = 100
FOUND = 1e-6  # the relative residual from which on a point was not found
NAMED = 3  # constraints that are written out
BANDS_ALONE = {"affine": "hyperplane", "halfspace": "halfspace", "slab": "slab"}


class Block(Protocol):
    """The projection on one component; ``entries`` (sorted or in the block's own order) lists its entries of y."""

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        """Entries of the flat y."""

    @property
    def kind(self) -> str:
        """The name of such sets, in messages and ``CompiledSet.kind``."""

    @property
    def cost(self) -> str:
        """Cost of one projection, n being the number of entries."""

    @property
    def advice(self) -> str:
        """What to write instead so that the projection gets cheaper; empty where there is nothing to gain."""

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Projection of the entries ``z``; NaN where it could not be found to 1e-6."""

    def gap(self, values: Values) -> Float[Array, ""]:
        """A number, positive when the block is empty."""

    def explain(self) -> str:
        """Say what was recognised."""


@dataclass(frozen=True, eq=False)
class ConditionBlock:
    """``b <= 0`` (or ``== 0``) for rows whose coefficients vanish everywhere: without y they can only make the set empty."""

    origin: Origin
    rows: CompiledRows
    equality: bool
    entries: Int[np.ndarray, 0] = field(default_factory=lambda: np.zeros(0, int))
    kind: str = "condition"
    cost: str = "O(1)"
    advice: str = ""

    def project(self, z: Float[Array, 0], values: Values) -> Float[Array, 0]:
        return z

    def gap(self, values: Values) -> Float[Array, ""]:
        b = self.rows.offsets(values)
        return beyond(jnp.max(jnp.abs(b) if self.equality else b))

    def explain(self) -> str:
        return f"condition on x: {constraints_text([self.origin])}"


@dataclass(frozen=True, eq=False)
class BoxBlock:
    """Entries with bounds only."""

    entries: Int[np.ndarray, " n"]
    bounds: tuple[EntryBounds, ...]
    kind: str = "box"
    cost: str = "O(n)"
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        return None if part.members else "box"

    @classmethod
    def of(cls, parts: Sequence[Component]) -> BoxBlock:
        (part,) = parts
        return cls(part.entries, part.bounds)

    def limits(self, values: Values) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return lower, upper

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return box.project(z, lower, upper)

    def gap(self, values: Values) -> Float[Array, ""]:
        """The largest lower - upper, or the violation of a bound whose coefficient vanishes."""
        lower, upper, broken = limits(self.bounds, self.entries, values)
        return jnp.maximum(box.gap(lower, upper), broken)

    def explain(self) -> str:
        return f"box, by clipping: {constraints_text(b.origin for b in self.bounds)}"


@dataclass(frozen=True, eq=False)
class AffineBlock:
    """Equations, factorised once if their matrix is constant."""

    entries: Int[np.ndarray, " n"]
    bands: Bands
    factor: affine.Factor | None
    kind: str = "affine"

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        equations = len(part.bands) == len(part.members) and all(band.equality for band in part.bands)
        if part.bounds or not equations or len(part.bands) * len(part.entries) > DENSE_ENTRIES:
            return None
        return id(part)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> AffineBlock:
        (part,) = parts
        bands = Bands(part.bands)
        factor = affine.factorise(bands.dense({}, part.entries)) if bands.constant else None
        return cls(part.entries, bands, factor)

    @property
    def cost(self) -> str:
        rows = len(self.bands.members)
        return f"O({rows} n), factorised once" if self.factor is not None else f"O({rows}^2 n), factorised for each x"

    @property
    def advice(self) -> str:
        if self.factor is not None:
            return ""
        return (
            "keep the matrix of the equations constant and let x enter their right-hand sides only: it is then factorised "
            "once"
        )

    def _system(self, values: Values) -> tuple[affine.Factor, Float[Array, " k"]]:
        low, _ = self.bands.interval(values)  # -b, and high with it unless parallel rows ask for different ones, which ``gap`` tells
        return self.factor or affine.factorise(self.bands.dense(values, self.entries), jnp), -low

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        return affine.project(z, *self._system(values))

    def condition(self, values: Values) -> Float[Array, ""]:
        """The condition of the matrix: rounding errors grow by it."""
        return jnp.asarray(self._system(values)[0].condition)

    def gap(self, values: Values) -> Float[Array, ""]:
        low, high = self.bands.interval(values)
        return jnp.maximum(affine.gap(*self._system(values)), box.gap(low, high))

    def explain(self) -> str:
        how = "factorised once" if self.factor is not None else "factorised for each environment"
        return f"affine set, {how}: {constraints_text(self.bands.origins)}"


@dataclass(frozen=True, eq=False)
class PolyhedronBlock:
    """``low <= A y <= high`` with bounds on the entries, at most ``ROW_LIMIT`` rows."""

    entries: Int[np.ndarray, " n"]
    bands: Bands
    bounds: tuple[EntryBounds, ...]
    kind: str = "polyhedron"

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        rows = len(part.bands)
        if rows < len(part.members) or rows > ROW_LIMIT or rows * len(part.entries) > DENSE_ENTRIES:
            return None
        return id(part)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> PolyhedronBlock:
        (part,) = parts
        return cls(part.entries, Bands(part.bands), part.bounds)

    @property
    def cost(self) -> str:
        rows = len(self.bands.members)
        return f"O({rows}^2 n) a Newton step, few steps"

    @property
    def advice(self) -> str:
        if self.bands.constant:
            return ""
        return "keep the rows constant and let x enter their right-hand sides only"

    def _set(self, values: Values) -> tuple[Array, ...]:
        """(matrix, low, high, lower, upper)."""
        lower, upper, _ = limits(self.bounds, self.entries, values)
        return jnp.asarray(self.bands.dense(values, self.entries), float), *self.bands.interval(values), lower, upper

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """NaN where the method stopped short."""
        p, residual = polyhedron.project(z, *self._set(values))
        return jnp.where(residual <= FOUND, p, jnp.nan)

    def gap(self, values: Values) -> Float[Array, ""]:
        """Positive when the bands and the box do not meet, or a bound whose coefficient vanishes does not hold."""
        return jnp.maximum(polyhedron.gap(*self._set(values)), limits(self.bounds, self.entries, values)[2])

    def explain(self) -> str:
        constraints = constraints_text([*self.bands.origins, *(b.origin for b in self.bounds)])
        return (
            f"polyhedron of {len(self.bands.members)} bands over a box, by semismooth Newton on the dual: {constraints}"
        )


@dataclass(frozen=True, eq=False)
class BoxWithBandBlock:
    """Boxes with one band each: simplices, capped simplices, budgets, halfspaces, slabs, and boxes cut by one of these.

    Boxes of one size are side by side: band g acts on ``groups[g]``, (number of boxes, size).
    """

    groups: Int[np.ndarray, "groups size"]
    bands: Bands
    bounds: tuple[EntryBounds, ...]
    weights: Float[np.ndarray, "groups size"] | None  # None where the normals move
    kind: str
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """Components of a band and bounds are alike if they have the same number of entries, those without if their bands are as well."""
        band = part.lone(Band)
        if band is None:
            return None
        return len(part.entries), True if part.bounds else (band.equality, band.one_sided)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> Block | None:
        """One block for components of one band each, all of the same size; a more general one where they share entries."""
        groups = np.stack([part.entries for part in parts])
        if len(np.unique(groups)) < groups.size:
            whole = Component.joined(parts)
            return next((kind.of([whole]) for kind in (AffineBlock, PolyhedronBlock) if kind.alike(whole)), None)
        bands = Bands(tuple(part.bands[0] for part in parts))
        bounds = EntryBounds.joined([bound for part in parts for bound in part.bounds])
        weights = None
        if bands.constant:
            weights = np.stack([p.bands[0].normal.pattern[:, p.entries].toarray()[0] for p in parts])
        if bounds:
            kind = "simplex" if _is_simplex(groups, bands, bounds, weights) else "strip"
        else:
            band = bands.members[0]
            kind = "affine" if band.equality else "halfspace" if band.one_sided else "slab"
        return cls(groups, bands, bounds, weights, kind)

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        return self.groups.ravel()

    @property
    def cost(self) -> str:
        return box_with_hyperplane.COST if self.bounds else "O(n)"

    def _limits(
        self, values: Values
    ) -> tuple[Float[Array, "groups size"], Float[Array, "groups size"], Float[Array, ""]]:
        lower, upper, broken = limits(self.bounds, self.entries, values)
        return lower.reshape(self.groups.shape), upper.reshape(self.groups.shape), broken

    def _normals(self, values: Values) -> Float[Array, "groups size"]:
        if self.weights is not None:
            return jnp.asarray(self.weights, float)
        columns, weights = self.bands.coefficients(values)
        places = places_among(self.entries, columns)
        return jnp.zeros(self.entries.size).at[places].set(weights).reshape(self.groups.shape)

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        (low, high), (lower, upper, _) = self.bands.interval(values), self._limits(values)
        grouped, normals = z.reshape(self.groups.shape), self._normals(values)
        return jax.vmap(box_with_hyperplane.project)(grouped, normals, low, high, lower, upper).ravel()

    def gap(self, values: Values) -> Float[Array, ""]:
        (low, high), (lower, upper, broken) = self.bands.interval(values), self._limits(values)
        missed = jax.vmap(box_with_hyperplane.gap)(self._normals(values), low, high, lower, upper)
        return jnp.maximum(jnp.max(missed), broken)

    def explain(self) -> str:
        count = len(self.groups)
        constraints = constraints_text([*self.bands.origins, *(b.origin for b in self.bounds)])
        if not self.bounds:
            what = BANDS_ALONE[self.kind]
            return f"{what if count == 1 else f'{count} {what}s'}: {constraints}"
        if self.kind == "simplex":
            what = "simplex" if count == 1 else f"{count} simplices"
        else:
            what = "box with one band" if count == 1 else f"{count} boxes with one band each"
        return f"{what}, {box_with_hyperplane.METHOD}: {constraints}"


def _is_simplex(
    groups: Int[np.ndarray, "groups size"],
    bands: Bands,
    bounds: Sequence[EntryBounds],
    weights: Float[np.ndarray, "groups size"] | None,
) -> bool:
    """Whether all weights of a band are equal, all bands are equations, and the bounds are exactly y >= 0 everywhere."""
    if weights is None or not all(band.equality for band in bands.members):
        return False
    if (np.ptp(weights, axis=1) > 1e-14 * np.abs(weights).max(axis=1)).any():
        return False
    if any(b.equality or not b.rows.constant or b.rows.source.fixed is None for b in bounds):
        return False
    lower, upper, _ = limits(bounds, groups.ravel(), {})
    return bool((np.asarray(lower) == 0).all() and np.isposinf(np.asarray(upper)).all())


@dataclass(frozen=True, eq=False)
class ImageBlock:
    """A membership ``A y + b in C`` with orthogonal rows, or several of one family and size side by side (a leading axis G everywhere).

    With A = diag(d) W, W W' = I, the set is {y : W y + b / d in {v : d * v in C}}, and its projection is
    z + W' (P(v) - v) at v = W z + b / d (Bauschke and Combettes, 2017, Proposition 29.1 and Corollary 28.16).
    """

    memberships: tuple[CompiledMembership, ...]  # those of a constraint together
    frame: Frame
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """Lone memberships are alike if they are of one family and size, each of entries of y alone, or of one constraint."""
        member = part.lone(CompiledMembership)
        if member is None or part.bounds:
            return None
        plain = member.constant and has_single_entries(member.rows)
        family = member.family.name, member.squared, member.radius is None
        return family if plain else id(member.rows.source), len(member.rows.index), len(part.entries)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> ImageBlock | None:
        """One block for components of one membership each; None if the rows are no frame that the family admits."""
        lone = [one for part in parts if (one := part.lone(CompiledMembership)) is not None]
        memberships = [m for same in by_source(lone) for m in same]
        frame = Frame.of(memberships)
        if frame is None or not all(map(memberships[0].family.admits, frame.scales)):
            return None
        return cls(tuple(memberships), frame)

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        return self.frame.entries

    @property
    def family(self) -> Family:
        return self.memberships[0].family

    @property
    def kind(self) -> str:
        return self.family.name

    @property
    def cost(self) -> str:
        return self.family.cost + ("" if isinstance(self.frame.turn, np.ndarray) else " and a rotation")

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        frame, offset = self.frame, self.frame.offset(values)
        v = frame.into(z) + offset
        p = jax.vmap(self.family.project)(v, jnp.asarray(frame.scales, v.dtype), self._radius(values))
        return frame.back(p - offset) if frame.is_square else z + frame.back(p - v)

    def gap(self, values: Values) -> Float[Array, ""]:
        """What the radius lacks; -inf for cones."""
        right = self._right(values)
        return jnp.asarray(-jnp.inf) if right is None else jnp.max(beyond(-right, jnp.abs(right)))

    def _right(self, values: Values) -> Float[Array, " G"] | None:
        """What is on the right sides; None for cones."""
        parts = []
        for same in by_source(self.memberships):
            if same[0].radius is None:
                return None
            parts.append(same[0].radius(values)[np.array([m.group for m in same], np.int32)])
        return jnp.concatenate(parts)

    def _radius(self, values: Values) -> Float[Array, " G"]:
        """The radii, infinite for cones."""
        right = self._right(values)
        if right is None:
            return jnp.full(len(self.memberships), jnp.inf)
        return not_below_zero(_root(right) if self.memberships[0].squared else right)

    def explain(self) -> str:
        count = len(self.memberships)
        what = self.kind if count == 1 else f"{count} times {self.kind}"
        several = by_source(self.memberships)
        more = f" and {len(several) - NAMED:,} more" if len(several) > NAMED else ""
        return f"{what}: {constraints_text(same[0].origin for same in several[:NAMED])}{more}"


def _root(square: Float[Array, " G"]) -> Float[Array, " G"]:
    """sqrt(max(square, 0)), at 0 with a slope that counts as infinite."""
    root = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    return jnp.where(square == 0, steep(square), root)


@dataclass(frozen=True, eq=False)
class ProgramBlock:
    """Where no rule knows the projection: the nearest point by a parametric program on the host; NaN where the set is empty.

    Alone among the blocks it is exact to a solver's tolerance, not to rounding.
    """

    entries: Int[np.ndarray, " n"]
    nearest: parametric.NearestPoint
    parameters: tuple[cp.Parameter, ...]
    origins: tuple[Origin, ...]
    reasons: tuple[str, ...]
    kind: str = "program"
    cost: str = "a conic program on the host"
    advice: str = (
        "a projection without a program needs bounds, norms (1, 2, inf) of expressions with constant orthogonal rows, "
        "simplices, affine rows over a box, second-order cones or semidefinite matrices, none of which share entries of y"
    )

    @classmethod
    def of(
        cls, parts: Sequence[Component], twins: Sequence[cp.Variable], parameters: Sequence[cp.Parameter]
    ) -> ProgramBlock:
        """Min ||y - z||^2 over the constraints of these components.

        Raises ``NotConvexError`` or ``UnsupportedAtomError`` where a constraint has user code, or something else of which no cone is
        known.
        """
        entries = np.unique(np.concatenate([part.entries for part in parts]))
        origins = tuple(dict.fromkeys(origin for part in parts for origin in part.origins))
        constraints = list({id(origin.hoisted): origin.hoisted for origin in origins}.values())
        used = {leaf.id for c in constraints for leaf in c.parameters()}
        reasons = dict.fromkeys(m.reason for part in parts for m in part.members if isinstance(m, Opaque))
        try:
            nearest = parametric.NearestPoint.on(constraints, twins)
        except NoStandardFormError as reason:
            refusal = NotConvexError if any(map(user_code_in, constraints)) else UnsupportedAtomError
            raise refusal(f"there is no projection on {constraints_text(origins)}: {reason}.") from None
        return cls(
            entries,
            nearest,
            tuple(p for p in parameters if p.id in used),
            origins,
            tuple(reasons) or ("coupled constraints without a closed form",),
        )

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """The nearest point, to about 1e-9 of its size."""
        fine = jnp.isfinite(z).all()  # an earlier failure passes through
        whole = jnp.zeros(self.nearest.size, z.dtype).at[self.entries].set(jnp.where(fine, z, 0.0))
        return jnp.where(fine, self.nearest.project(whole, self._given(values))[self.entries], jnp.nan)

    def gap(self, values: Values) -> Float[Array, ""]:
        return self.nearest.gap(self._given(values))

    def explain(self) -> str:
        return f"a program for the nearest point: {constraints_text(self.origins)} ({'; '.join(self.reasons)})"

    def _given(self, values: Values) -> dict[int, Array]:
        return {p.id: jnp.asarray(values[p.id], float) for p in self.parameters}


Kind = type[BoxBlock | BoxWithBandBlock | ImageBlock | AffineBlock | PolyhedronBlock]
KINDS: tuple[Kind, ...] = (BoxBlock, BoxWithBandBlock, ImageBlock, AffineBlock, PolyhedronBlock)


def choose(members: Sequence[Member], bounds: Sequence[EntryBounds]) -> tuple[list[Block], list[Component]]:
    """Blocks for a set, by the first kind that takes a component, and the components that none takes."""
    groups: dict[tuple[Kind, Hashable], list[Component]] = {}
    left: list[Component] = []
    for part in components(members, bounds):
        keys = ((kind, kind.alike(part)) for kind in KINDS)
        found = next(((kind, key) for kind, key in keys if key is not None), None)
        (left if found is None else groups.setdefault(found, [])).append(part)
    blocks: list[Block] = []
    for (kind, _), parts in groups.items():
        together = kind.of(parts)
        each = [(parts[0], together)] if together is not None else [(part, kind.of([part])) for part in parts]
        for part, block in each:
            if block is None:
                left.append(part)
            else:
                blocks.append(block)
    return blocks, left

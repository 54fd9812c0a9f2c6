"""``CompiledSet``: the projection on a convex set of flat vectors that may move with x, a client or a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from jaxtyping import Array, Float

from hierfl.compiler.expressions.inequalities import Inequalities
from hierfl.compiler.expressions.program import Program
from hierfl.compiler.parametric.nearest_point import NearestPoint
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.sets.blocks.affine_block import AffineBlock
from hierfl.compiler.sets.blocks.block import Block, Product
from hierfl.compiler.sets.blocks.box_block import BoxBlock
from hierfl.compiler.sets.blocks.cut_by_ball_block import CutByBall
from hierfl.compiler.sets.blocks.cut_by_band_block import CutByBand
from hierfl.compiler.sets.blocks.dykstra_block import DykstraBlock
from hierfl.compiler.sets.blocks.polyhedron_block import PolyhedronBlock
from hierfl.compiler.sets.blocks.program_block import ProgramBlock
from hierfl.jaxtools.cheap_jit import quick_jit, traced_for_numpy

ITERATING = (PolyhedronBlock, DykstraBlock, ProgramBlock, CutByBall, CutByBand)
HOST_LIMIT = 120  # scalars, for whose matrices the host engine takes about a millisecond


@dataclass(frozen=True, eq=False)
class CompiledSet:
    """A convex set of flat vectors ``(size,)`` that may move with the environment (leaf id -> array)."""

    label: str
    size: int
    blocks: tuple[Block, ...]
    parameters: tuple[cp.Parameter, ...]
    hoisted_program: Program
    depends_on: frozenset[int]
    constraints: tuple[Constraint, ...]
    variables: tuple[cp.Variable, ...]

    @cached_property
    def kind(self) -> str:
        """``"free"``, a family (``"box"``, ``"ball"``, ``"simplex"``, ``"program"``, ...) or ``"product of ..."``."""
        moving = [block for block in self.blocks if len(block.entries)]
        kinds = list(dict.fromkeys(block.kind for block in moving))
        covered = len(np.unique(np.concatenate([b.entries for b in moving]))) if moving else 0
        if not kinds:
            return "free"
        if len(moving) == 1 and (covered == self.size or kinds[0] in ("box", "program")):
            return kinds[0]
        return "product of " + ", ".join([*kinds, *(["free"] if covered < self.size else [])])

    @cached_property
    def product(self) -> Product:
        """The blocks in turn."""
        return Product(np.arange(self.size), self.blocks)

    @property
    def is_exact(self) -> bool:
        """Whether every block is projected on exactly, to rounding."""
        return self.product.exact

    def values(self, environment: Mapping[int, Any]) -> dict[int, Any]:
        """Values of the hoisted parameters in an environment."""
        return dict(zip((p.id for p in self.parameters), self.hoisted_program(environment)))

    def project(self, z: Float[Array, " size"], environment: Mapping[int, Any]) -> Float[Array, " size"]:
        """The nearest point of the set; where it is empty, see :meth:`gap`."""
        if self.blocks and traced_for_numpy() and (on_host := self.on_host) is not None:
            return on_host.project(z, self._moving(environment))
        return self.traced_projection(z, environment)

    def project_quickly(self, z: Float[Array, " size"], environment: Mapping[int, Any]) -> Float[Array, " size"]:
        """``project`` for programs that run a few times and take no derivatives, which an iteration is not worth compiling for.

        Points of the set are told by its inequalities, others are found by a solver on the host, and by the iteration where that does
        not find them to rounding.
        """
        solver = self._solver if traced_for_numpy() else None
        if self.is_direct or (solver is not None and solver.polyhedral):
            return self.project(z, environment)
        if solver is not None:
            return solver.project(z, self._moving(environment), self._by_blocks)
        nearest = self.project(z, environment)
        return nearest if self._inequalities is None else jnp.where(self._holds(z, environment), z, nearest)

    @cached_property
    def _inequalities(self) -> Inequalities | None:
        """What says whether a point is in the set, beside which an iteration is rough; None where there are other constraints."""
        return Inequalities.of(self.constraints, self.variables)

    def _holds(self, z: Float[Array, " size"], environment: Mapping[int, Any]) -> Array:
        assert self._inequalities is not None
        return self._inequalities.hold(z, self._moving(environment))

    @cached_property
    def _held(self) -> Callable[..., Array]:
        return quick_jit(self._holds)

    def _by_blocks(self, points: Float[np.ndarray, "k size"], environment: Mapping[int, Any]) -> np.ndarray:
        return np.stack([np.asarray(self._iterated(point, dict(environment))) for point in points])

    @cached_property
    def _iterated(self) -> Callable[..., Array]:
        return quick_jit(self.traced_projection)

    def has_point(self, environment: Mapping[int, Any]) -> bool:
        """Whether the set has a point: by a solver on the host where an iteration would look for it, otherwise by ``gap``."""
        solver = None if self.is_direct else self._solver
        if solver is not None and solver.nearest(np.zeros(self.size), self._moving(environment)).solved:
            return True
        return bool(float(quick_jit(self.gap)(environment)) <= 0)

    def nearby(self, z: Float[Array, " size"], environment: Mapping[int, Any]) -> Float[Array, " size"]:
        """A point of the set near z, for a few looks at what holds there: the nearest one, to what a solver on the host leaves.

        A root search of a thousand operations is not worth its compilation for these.
        """
        if self.kind not in ("free", "box") and traced_for_numpy() and (solver := self._solver) is not None:
            return solver.project(z, self._moving(environment))
        return self.traced_projection(z, environment)

    def point_near(self, z: Float[np.ndarray, " size"], environment: Mapping[int, Any]) -> Float[np.ndarray, " size"]:
        """The nearest point, outside of programs: to rounding by a formula, or for a polyhedron by a solver; to 1e-9 where it is iterated."""
        if not self.is_direct and self._inequalities is not None and bool(self._held(z, environment)):
            return z
        if not self.is_direct or (
            self.kind not in ("free", "box") and self._solver is not None and self._solver.polyhedral
        ):
            near = np.asarray(self._nearby(z, environment))
            if np.isfinite(near).all():
                return near
        return np.asarray(self._projected(z, environment))

    @cached_property
    def _nearby(self) -> Callable[..., Array]:
        return quick_jit(self.nearby)

    @cached_property
    def _projected(self) -> Callable[..., Array]:
        return quick_jit(self.project)

    def traced_projection(self, z: Float[Array, " size"], environment: Mapping[int, Any]) -> Float[Array, " size"]:
        """``project`` by the blocks, as compiled programs have it."""
        return self._project(z, self.values(environment)) if self.blocks else z

    @cached_property
    def is_direct(self) -> bool:
        """Whether the projection is a formula or one root search, not an iteration on several sets or rows."""
        return not any(isinstance(block, ITERATING) for block in self.blocks)

    @cached_property
    def on_host(self) -> NearestPoint | None:
        """The projection by the host engine, where it is the quicker one; None where it is not, or there is none."""
        # where other cones touch, as at (0, 2) of x_1^2 + 2 x_2 <= 4, x_2 <= 2, the nearest point is found to 1e-9 only
        solver = None if self.is_direct else self._solver
        return solver if solver is not None and solver.polyhedral else None

    @cached_property
    def _solver(self) -> NearestPoint | None:
        """The projection by the host engine, for sets of a size and of cones that it treats."""
        if self.size <= HOST_LIMIT:
            with suppress(NoStandardFormError):
                return NearestPoint.on(self.constraints, self.variables)
        return None

    def _moving(self, environment: Mapping[int, Any]) -> dict[int, Any]:
        """What the set depends on."""
        return {leaf: environment[leaf] for leaf in sorted(self.depends_on)}

    @cached_property
    def _project(self) -> Callable[..., Array]:
        """Traced and lowered once, however often a program calls it: a root search inside a Newton method is long."""
        return quick_jit(self.product.project)

    @cached_property
    def _gap(self) -> Callable[..., Array]:
        return quick_jit(self.product.gap)

    def limits(self, environment: Mapping[int, Any]) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        """(lower, upper) bounds of a set of kind ``"box"`` or ``"free"``."""
        values, boxes = self.values(environment), [block for block in self.blocks if isinstance(block, BoxBlock)]
        if len(boxes) == 1 and boxes[0].entries.size == self.size:
            return boxes[0].limits(values)
        lower, upper = jnp.full(self.size, -jnp.inf), jnp.full(self.size, jnp.inf)
        for block in boxes:
            low, high = block.limits(values)
            places = block.entries.astype(np.int32)
            lower, upper = lower.at[places].set(low), upper.at[places].set(high)
        return lower, upper

    def condition(self, environment: Mapping[int, Any]) -> Float[Array, ""]:
        """The condition of the equations among the constraints, 1 without: rounding errors grow by it."""
        values = self.values(environment)
        conditions = [block.condition(values) for block in self.blocks if isinstance(block, AffineBlock)]
        return jnp.max(jnp.stack([jnp.ones(()), *conditions]))

    def gap(self, environment: Mapping[int, Any]) -> Float[Array, ""]:
        """Positive when the set is empty in this environment."""
        if self.blocks and traced_for_numpy() and (on_host := self.on_host) is not None:
            return on_host.gap(self._moving(environment))
        return self.traced_gap(environment)

    def traced_gap(self, environment: Mapping[int, Any]) -> Float[Array, ""]:
        """``gap`` by the blocks, as compiled programs have it."""
        return self._gap(self.values(environment)) if self.blocks else jnp.asarray(-jnp.inf)

    def explain(self) -> str:
        """One line per block."""
        if not self.blocks:
            return "free (no constraints)"
        return "\n".join(block.explain() for block in self.blocks)

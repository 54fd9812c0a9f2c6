"""The projection on a convex set by the host engine: the nearest point in standard form, and its derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Bool, Float

from hierfl.compiler.expressions.inequalities import Inequalities
from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import EMPTY, SOLVED, ConeSolution
from hierfl.compiler.host.cones import inside
from hierfl.compiler.host.families.program_family import ProgramFamily
from hierfl.compiler.host.sensitivity import Sensitivity
from hierfl.compiler.host.standard_form import StandardForm
from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram
from hierfl.jaxtools.host_callback import Batch, call_on_host

Environment = Mapping[int, Any]
Otherwise = Callable[[np.ndarray, Environment], np.ndarray]
TOGETHER = 512  # points that are projected at once
COUNTS = (1, 8, 64, 512, 4096)  # of points that are looked at by one program
ROUGH = 1e-13  # the error of a nearest point that is looked for otherwise


@dataclass(frozen=True, eq=False)
class HostProjection:
    """The nearest point of a set in standard form."""

    form: StandardForm
    inequalities: Inequalities | None = None  # that say what is in the set, where there are no other constraints
    _programs: dict[Any, NumpyProgram] = field(default_factory=dict)

    @classmethod
    def on(cls, constraints: Sequence[Constraint], variables: Sequence[cp.Variable]) -> HostProjection:
        """The projection on what satisfies the constraints; raises ``NoStandardFormError`` where a cone is unknown."""
        return cls(StandardForm.of(None, constraints, variables), Inequalities.of(constraints, variables))

    def project(
        self, z: Float[Array, " size"], environment: Environment, otherwise: Otherwise | None = None
    ) -> Float[Array, " size"]:
        """The nearest point, NaN where there is none; traceable, and differentiable in z and in what the set depends on.

        ``otherwise`` gives the nearest points (k, size) to those (k, size) for which it is not found to rounding.
        """
        leaves = tuple(environment)
        size = self.form.size
        given = [jnp.asarray(environment[leaf]) for leaf in leaves]

        def nearest(z: np.ndarray, *values: np.ndarray) -> np.ndarray:
            return self.nearest_each(np.asarray(z, float)[None], dict(zip(leaves, values)), otherwise)[0]

        def nearest_each(batch: Batch) -> np.ndarray:
            points, *values = batch.arrays
            if any(len(value) > 1 for value in values):
                return np.stack([nearest(*call) for call in batch.calls()])
            points = np.broadcast_to(points, (batch.count, size)).astype(float)
            return self.nearest_each(points, {leaf: value[0] for leaf, value in zip(leaves, values)}, otherwise)

        @jax.custom_jvp
        def projected(z: Array, *values: Array) -> Array:
            return call_on_host(nearest, (size,), z.dtype, z, *values, many=nearest_each)

        def moved(primals: Any, tangents: Any) -> tuple[Array, Array]:
            moving = tuple(leaf for leaf, tangent in zip(leaves, tangents[1:]) if not isinstance(tangent, SymbolicZero))
            turned = [tangent for tangent in tangents if not isinstance(tangent, SymbolicZero)]
            if isinstance(tangents[0], SymbolicZero):
                turned.insert(0, jnp.zeros_like(primals[0]))

            def slope(z: np.ndarray, *values: np.ndarray) -> np.ndarray:
                return self.slope(z, dict(zip(leaves, values)), moving)

            along = jnp.concatenate([jnp.ravel(tangent) for tangent in turned])
            matrix = call_on_host(slope, (size, along.size), primals[0].dtype, *primals)
            return projected(*primals), matrix @ along

        projected.defjvp(moved, symbolic_zeros=True)
        return projected(z, *given)

    def gap(self, environment: Environment) -> Float[Array, ""]:
        """Positive where the set is empty; traceable."""
        leaves = tuple(environment)

        def gap(*values: np.ndarray) -> np.ndarray:
            answer = self.nearest(np.zeros(self.form.size), dict(zip(leaves, values)))
            return np.asarray(1.0 if answer.status == EMPTY else -1.0)

        return call_on_host(gap, (), jnp.zeros(0).dtype, *(jnp.asarray(environment[leaf]) for leaf in leaves))

    def nearest(self, z: np.ndarray, environment: Environment) -> ConeSolution:
        """The nearest point with its multipliers."""
        return self._program(z, environment).solve()

    def nearest_each(
        self, points: Float[np.ndarray, "k size"], environment: Environment, otherwise: Otherwise | None = None
    ) -> Float[np.ndarray, "k size"]:
        """The nearest points of many in one environment, NaN where there is none: themselves where they are in the set."""
        nearest = np.array(points, float)
        outside = np.flatnonzero(~self.contains(nearest, environment))
        for first in range(0, len(outside), TOGETHER):
            some = outside[first : first + TOGETHER]
            answers = self._nearest_together(nearest[some], environment)
            found = np.stack([answer.u[: self.form.size] for answer in answers])
            failed = np.array([answer.status != SOLVED for answer in answers])
            found[failed] = np.nan
            rough = failed | (np.array([answer.error for answer in answers]) > ROUGH)
            if otherwise is not None and rough.any():
                found[rough] = otherwise(nearest[some[rough]], environment)
            nearest[some] = found
        return nearest

    def _nearest_together(self, points: Float[np.ndarray, "k size"], environment: Environment) -> list[ConeSolution]:
        one, size = self._program(points[0], environment), self.form.size
        if len(points) == 1:
            return [one.solve()]
        g = np.concatenate([-points, np.zeros((len(points), self.form.width - size))], axis=1)
        h, a, b = (np.broadcast_to(array, (len(points), *array.shape)) for array in (one.h, one.a, one.b))
        return ProgramFamily.of((h, g, a, b), self.form.cones, self.form.bounds, size).solve()

    def contains(self, points: Float[np.ndarray, "k size"], environment: Environment) -> Bool[np.ndarray, " k"]:
        """Which points are in the set for sure."""
        if self.form.width == self.form.size:
            a, b = self.rows(environment)
            return inside(self.form.cones, points @ a.T + b)
        if self.inequalities is None:
            return np.zeros(len(points), bool)
        count = next((size for size in COUNTS if size >= len(points)), len(points))
        padded = points[np.minimum(np.arange(count), len(points) - 1)]
        if ("contains", count) not in self._programs:
            with jax.enable_x64(True):
                each = jax.vmap(self.inequalities.hold, (0, None))
                self._programs["contains", count] = NumpyProgram(each, padded, dict(environment))
        held: np.ndarray = self._programs["contains", count](padded, dict(environment))
        return held[: len(points)]

    def slope(
        self, z: np.ndarray, environment: Environment, moving: tuple[int, ...] = ()
    ) -> Float[np.ndarray, "size size+moving"]:
        """The derivative in z and in the entries of the ``moving`` leaves; at a kink that of one of the pieces."""
        program, size = self._program(z, environment), self.form.size
        answer, width, height = program.solve(), self.form.width, self.form.height
        total = size + sum(np.size(environment[leaf]) for leaf in moving)
        if answer.status != SOLVED:
            return np.full((size, total), np.nan)
        leave = SetMotion(self, dict(environment), moving, answer.u)

        def push(multipliers: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            force, rows = leave.push(multipliers, r[size:]) if moving else (np.zeros(width), np.zeros(height))
            return force - np.concatenate([r[:size], np.zeros(width - size)]), rows

        def pull(multipliers: np.ndarray, v: np.ndarray, w: np.ndarray) -> np.ndarray:
            return np.concatenate([-v[:size], leave.pull(multipliers, v, w) if moving else np.zeros(0)])

        look = Sensitivity(program, answer.u, answer.z, push, pull, total)
        return np.array([look.gradient(seed) for seed in np.eye(size, width)])

    def rows(self, environment: Environment) -> tuple[Float[np.ndarray, "rows width"], Float[np.ndarray, " rows"]]:
        """A and b: the set is where A u + b is in the form's cones, and the point is the start of u."""
        if "rows" not in self._programs:
            with jax.enable_x64(True):
                self._programs["rows"] = NumpyProgram(self._rows, dict(environment))
        a, b = self._programs["rows"](dict(environment))
        return a, b

    def _program(self, z: np.ndarray, environment: Environment) -> ConeProgram:
        a, b = self.rows(environment)
        size, width = self.form.size, self.form.width
        h = np.zeros((width, width))
        h[:size, :size] = np.eye(size)
        return ConeProgram(
            h, np.concatenate([-np.asarray(z, float), np.zeros(width - size)]), a, b, self.form.cones, self.form.bounds
        )

    def _rows(self, environment: Environment) -> tuple[Array, Array]:
        values, zero = self.form.values(environment), jnp.zeros(self.form.width)
        return jax.jacfwd(lambda u: self.form.slack(values, u))(zero), self.form.slack(values, zero)

    def traced(self, name: str, moving: tuple[int, ...], function: Any, *arguments: Any) -> Any:
        """The value of a function of arrays, traced once for every choice of moving leaves."""
        key = name, moving
        if key not in self._programs:
            with jax.enable_x64(True):
                self._programs[key] = NumpyProgram(function, *arguments)
        return self._programs[key](*arguments)


@dataclass(frozen=True, eq=False)
class SetMotion:
    """How the rows of a set, at a point u of it, move with the leaves that it depends on, all their entries in a vector."""

    projection: HostProjection
    environment: dict[int, Any]
    moving: tuple[int, ...]
    u: Float[np.ndarray, " width"]

    def push(self, multipliers: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(-(A_r)'z, (A_r) u + b_r) for a change r of the leaves."""
        slack = self.projection.form.slack
        values = self.projection.form.values

        def pushed(u: Array, z: Array, moving: Any, fixed: Any, along: Any) -> tuple[Array, Array]:
            def turned(moving: Any) -> tuple[Array, Array]:
                rows, back = jax.vjp(lambda u: slack(values({**fixed, **moving}), u), u)
                return -back(z)[0], rows

            return jax.jvp(turned, (moving,), (along,))[1]

        moving, fixed = self._parts()
        return self.projection.traced(
            "push", self.moving, pushed, self.u, multipliers, moving, fixed, self._by_leaf(np.asarray(r, float))
        )

    def pull(self, multipliers: np.ndarray, v: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The transpose: the gradient in the leaves of -z'(A v) + w'(A u + b)."""
        slack = self.projection.form.slack
        values = self.projection.form.values

        def pulled(u: Array, z: Array, v: Array, w: Array, moving: Any, fixed: Any) -> Any:
            def paired(moving: Any) -> Array:
                now = values({**fixed, **moving})
                return w @ slack(now, u) - z @ (slack(now, v) - slack(now, jnp.zeros_like(v)))

            return jax.grad(paired)(moving)

        moving, fixed = self._parts()
        told = self.projection.traced("pull", self.moving, pulled, self.u, multipliers, v, w, moving, fixed)
        return np.concatenate([np.ravel(told[leaf]) for leaf in self.moving])

    def _parts(self) -> tuple[dict[int, Any], dict[int, Any]]:
        moving = {leaf: np.asarray(self.environment[leaf], float) for leaf in self.moving}
        return moving, {leaf: value for leaf, value in self.environment.items() if leaf not in moving}

    def _by_leaf(self, entries: np.ndarray) -> dict[int, np.ndarray]:
        shapes = {leaf: np.shape(self.environment[leaf]) for leaf in self.moving}
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
        parts = np.split(entries, ends[:-1])
        return {leaf: part.reshape(shape) for (leaf, shape), part in zip(shapes.items(), parts)}

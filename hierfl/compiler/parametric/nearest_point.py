"""The projection on a convex set by a program of its own, the nearest point, with its derivative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import Inequality
from cvxpy.constraints.constraint import Constraint
from jax import Array
from jaxtyping import Bool, Float

from hierfl.compiler.expressions.program import Program
from hierfl.compiler.layout import Layout
from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.level_solver import LevelSolver
from hierfl.compiler.programs.convex_program import EMPTY, ProgramSolution
from hierfl.compiler.programs.response import ProgramResponse
from hierfl.jaxtools.host_callback import numbers_on_host

Environment = Mapping[int, Any]


@dataclass(frozen=True, eq=False)
class NearestPoint:
    """The nearest point of a set of rows and cones; ``targets`` stand for what is projected.

    ``inequalities`` are left sides minus right sides, as they are written, of those that say what is in the set, where there is nothing else.
    """

    solver: LevelSolver
    layout: Layout
    targets: tuple[cp.Parameter, ...]
    inequalities: Program | None

    @classmethod
    def on(cls, constraints: Sequence[Constraint], variables: Sequence[cp.Variable]) -> NearestPoint:
        """The projection on what satisfies the constraints; raises ``NoStandardFormError`` where a cone is unknown."""
        targets = tuple(cp.Parameter(v.shape) for v in variables)
        cost = sum(0.5 * cp.sum_squares(v - t) for v, t in zip(variables, targets))
        form = LevelForm.of([(cost, 1.0, None)], constraints, variables, False)
        return cls(LevelSolver(form, True), Layout(tuple(variables)), targets, _inequalities(constraints))

    @property
    def size(self) -> int:
        return self.solver.form.size

    def theta(self, z: Array, environment: Environment) -> Array:
        """What the program is built from; traceable."""
        parts = dict(zip((target.id for target in self.targets), self.layout.split(z).values()))
        return self.solver.form.base.theta_at({**environment, **parts})

    def project(self, z: Float[Array, " size"], environment: Environment) -> Float[Array, " size"]:
        """The nearest point, NaN where there is none; traceable, and differentiable in z and in what the set depends on."""
        size = self.size

        def found(z: np.ndarray, theta: np.ndarray, inside: np.ndarray) -> np.ndarray:
            return self._nearest_each(1, z[None], theta[None], inside[None])[0]

        @jax.custom_jvp
        def nearest(theta: Array, z: Array, inside: Array) -> Array:
            return numbers_on_host(found, (size,), z.dtype, z, theta, inside, many=self._nearest_each)

        @nearest.defjvp
        def moved(primals: Any, tangents: Any) -> tuple[Array, Array]:
            theta = primals[0]
            matrix = numbers_on_host(self.slope, (size, theta.size), theta.dtype, theta)
            return nearest(*primals), matrix @ tangents[0]

        fixed = jax.lax.stop_gradient(z)
        return nearest(self.theta(z, environment), fixed, self._contains(fixed, environment).astype(z.dtype))

    def gap(self, environment: Environment) -> Float[Array, ""]:
        """Positive where the set is empty; traceable."""

        def gap(theta: np.ndarray) -> np.ndarray:
            return np.asarray(1.0 if self.solver.answer([theta]).chosen.status == EMPTY else -1.0)

        return numbers_on_host(gap, (), jnp.zeros(0).dtype, self.theta(jnp.zeros(self.size), environment))

    def nearest(self, z: Float[np.ndarray, " size"], environment: Environment) -> ProgramSolution:
        """The program's solution at one point; the nearest point is the start of its u."""
        with jax.enable_x64(True):
            theta = np.asarray(self.theta(jnp.asarray(z), environment), float)
        return self.solver.answer([theta]).chosen

    def _nearest_each(
        self,
        count: int,
        points: Float[np.ndarray, "count size"],
        thetas: Float[np.ndarray, "count theta"],
        inside: Float[np.ndarray, " count"],
    ) -> Float[np.ndarray, "count size"]:
        """The nearest points of many, NaN where there is none: themselves where they are in the set."""
        nearest, outside = np.array(points), np.flatnonzero(inside == 0)
        nearest[outside] = self._solved(thetas[outside])
        return nearest

    def _solved(self, thetas: Float[np.ndarray, "k theta"]) -> Float[np.ndarray, "k size"]:
        if not self.solver.has_families or len(thetas) == 1:
            answers = [self.solver.answer([theta]).chosen.u[: self.size] for theta in thetas]
            return np.stack(answers) if answers else np.zeros((0, self.size))
        family, others = self.solver.answers([thetas], [])
        found = np.array(family.u[:, : self.size])
        for k, one in others:
            found[k] = one.chosen.u[: self.size]
        return found

    def _contains(self, z: Float[Array, " size"], environment: Environment) -> Bool[Array, ""]:
        """Whether a point is in the set for sure, rounding included; one that no row holds is found to the bit where rows say it all."""
        if self.solver.form.base.width == self.size or self.inequalities is None:
            return jnp.zeros((), bool)
        values = self.inequalities({**{leaf: jax.lax.stop_gradient(value) for leaf, value in environment.items()}, **self.layout.split(z)})
        return jnp.all(jnp.concatenate([jnp.ravel(value) for value in values]) <= 0.0)

    def slope(self, theta: Float[np.ndarray, " theta"]) -> Float[np.ndarray, "size theta"]:
        """The derivative in theta; at a kink that of one of the pieces."""
        answer = self.solver.answer([theta])
        if not answer.chosen.solved:
            return np.full((self.size, theta.size), np.nan)
        form = self.solver.form
        response = ProgramResponse(form.program, [theta], answer.program, answer.chosen, form.push)
        pairs = (response.piece(seed) for seed in np.eye(self.size, answer.program.width))
        return np.array([form.pull([theta], pair, answer.chosen.u)[0] for pair in pairs])


def _inequalities(constraints: Sequence[Constraint]) -> Program | None:
    """None where there are constraints of another kind, or in the domain of one: y'y / t has values for t < 0 as well."""
    whole = [*constraints, *(own for constraint in constraints for part in constraint.args for own in part.domain)]
    return Program([c.args[0] - c.args[1] for c in whole]) if all(isinstance(c, Inequality) for c in whole) else None

"""Inequalities as they are written: whether a point satisfies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import Inequality
from cvxpy.constraints.constraint import Constraint
from jax import Array
from jaxtyping import Bool, Float

from hierfl.compiler.expressions.program import Program


@dataclass(frozen=True, eq=False)
class Inequalities:
    """Left sides minus right sides, as a program of the variables and of what else the inequalities depend on."""

    program: Program
    variables: tuple[cp.Variable, ...]

    @classmethod
    def of(cls, constraints: Sequence[Constraint], variables: Sequence[cp.Variable]) -> Inequalities | None:
        """None where there are constraints of another kind, or in the domain of one: y'y / t has values for t < 0 as well."""
        domains = [own for constraint in constraints for part in constraint.args for own in part.domain]
        if not all(isinstance(constraint, Inequality) for constraint in (*constraints, *domains)):
            return None
        return cls(Program([c.args[0] - c.args[1] for c in (*constraints, *domains)]), tuple(variables))

    def hold(self, z: Float[Array, " size"], environment: Mapping[int, Any]) -> Bool[Array, ""]:
        """Whether all hold at a flat point, rounding included; traceable."""
        ends = np.cumsum([v.size for v in self.variables])
        parts = {v.id: jnp.reshape(part, v.shape) for v, part in zip(self.variables, jnp.split(z, ends[:-1]))}
        values = self.program({**environment, **parts})
        return jnp.all(jnp.concatenate([jnp.ravel(value) for value in values]) <= 0.0)

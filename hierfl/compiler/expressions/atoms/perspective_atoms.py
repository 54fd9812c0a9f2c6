"""The perspective t f(x / t): the one atom that holds a second expression, compiled as a program of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from cvxpy.atoms.perspective import perspective

from hierfl.compiler.expressions.registry import lowers, refuses_when


@lowers(perspective, shared=False)
def _perspective(atom: Any, t: Any, *points: Any) -> Any:
    """NaN for t < 0; at t = 0 the recession function (NaN without one), with the slope in t from just above 0."""
    t = jnp.reshape(t, ())
    inside = t > 0
    value = _scaled(atom, atom.f, jnp.where(inside, t, 1.0), points)
    if atom.f_recession is None:
        edge: Any = jnp.nan
    else:
        fixed = [jax.lax.stop_gradient(point) for point in points]
        small = jnp.sqrt(jnp.finfo(t.dtype).eps)
        above = _scaled(atom, atom.f, small + jnp.where(inside, 0.0, t), fixed)
        slope = above - jax.lax.stop_gradient(above)
        edge = _scaled(atom, atom.f_recession, jnp.ones_like(t), points) + slope
    return jnp.where(inside, value, jnp.where(t == 0, edge, jnp.nan))


def _scaled(atom: Any, expression: Any, t: Any, points: Any) -> Any:
    from hierfl.compiler.expressions.program import Program

    program = Program([expression])
    environment = {variable.id: point / t for variable, point in zip(atom.f.variables(), points)}
    return t * jnp.reshape(program(environment)[0], ())


def _hidden_leaves(atom: Any) -> str | None:
    parts = [atom.f] if atom.f_recession is None else [atom.f, atom.f_recession]
    parameters = [parameter.name() for part in parts for parameter in part.parameters()]
    if parameters:
        return (
            f"its function holds the parameter {parameters[0]!r}, which CVXPY hides; "
            f"write t * f(x / t) with the atoms of f"
        )
    if not {v.id for part in parts for v in part.variables()} <= {v.id for v in atom.f.variables()}:
        return "its recession function has variables that the function itself has not"
    return None


refuses_when(_hidden_leaves, perspective)

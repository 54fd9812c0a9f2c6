"""The perspective t f(x / t), which holds a second expression; and support functions, which are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
from cvxpy.atoms.perspective import perspective
from cvxpy.atoms.suppfunc import SuppFuncAtom
from cvxpy.expressions.expression import Expression

from hierfl.atoms.loaded_late import jax, jnp
from hierfl.atoms.row import AtomRow, NoAnswerError
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Spelling


def _functions(atom: Any) -> tuple[Expression, ...]:
    return (atom.f,) if atom.f_recession is None else (atom.f, atom.f_recession)


def _perspective(atom: Any, functions: Any, t: Any, *points: Any) -> Any:
    """NaN for t < 0; at t = 0 the recession function (NaN without one), with the slope in t from just above 0."""
    function, *recession = functions
    t = jnp.reshape(t, ())
    inside = t > 0
    value = _scaled(atom, function, jnp.where(inside, t, 1.0), points)
    if not recession:
        edge: Any = jnp.nan
    else:
        fixed = [jax.lax.stop_gradient(point) for point in points]
        small = jnp.sqrt(jnp.finfo(t.dtype).eps)
        above = _scaled(atom, function, small + jnp.where(inside, 0.0, t), fixed)
        slope = above - jax.lax.stop_gradient(above)
        edge = _scaled(atom, recession[0], jnp.ones_like(t), points) + slope
    return jnp.where(inside, value, jnp.where(t == 0, edge, jnp.nan))


def _scaled(atom: Any, function: Any, t: Any, points: Any) -> Any:
    environment = {variable.id: point / t for variable, point in zip(atom.f.variables(), points)}
    return t * jnp.reshape(function(environment), ())


def _hidden_leaves(atom: Any) -> str | None:
    parts = _functions(atom)
    parameters = [parameter.name() for part in parts for parameter in part.parameters()]
    if parameters:
        return (
            f"its function holds the parameter {parameters[0]!r}, which CVXPY hides; "
            f"write t * f(x / t) with the atoms of f"
        )
    if not {v.id for part in parts for v in part.variables()} <= {v.id for v in atom.f.variables()}:
        return "its recession function has variables that the function itself has not"
    return None


def _copy(atom: Any, rebuild: Callable[[Any], Any]) -> Any:
    """Its function is a second expression, over the same variables as the arguments."""
    arguments = [rebuild(argument) for argument in atom.args]
    fixed = next((old for old, new in zip(atom.args, arguments) if not isinstance(new, cp.Variable)), None)
    if fixed is not None:
        name = repr(fixed.name()).replace("{", "{{").replace("}", "}}")
        raise NoAnswerError(
            f"{{atom}} scales {name}, which is fixed here, together with free variables: hierfl cannot "
            f"take it apart. Write t * f(x / t) with the atoms of f."
        )
    recession = None if atom.f_recession is None else rebuild(atom.f_recession)
    return perspective(rebuild(atom.f), arguments[0], recession)


ROWS = (
    AtomRow(
        (perspective,),
        lower=_perspective,
        shared=False,
        inside=_functions,
        copy=_copy,
        refusal_of=_hidden_leaves,
        read=lambda reader, atom: Phrase("perspective", (reader(atom.f), reader(atom.args[0]))),
    ),
    AtomRow(
        (SuppFuncAtom,),
        refusal="a support function is defined by a conic program and has no closed form; write the set's own",
        spellings=(Spelling("suppfunc"),),
    ),
)

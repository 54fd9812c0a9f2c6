"""Trigonometric and hyperbolic functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cvxpy.atoms.elementwise.hyperbolic import asinh, atanh, sinh, tanh
from cvxpy.atoms.elementwise.trig import cos, sin, tan

from hierfl.atoms.formulas import entry_by_entry
from hierfl.atoms.loaded_late import jnp, sympy
from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing.spelling import Spelling


def _row(kind: type, lower: Callable[[Any], Any], formula: Callable[[Any], Any], latex: str) -> AtomRow:
    """The row of a function of each entry."""
    return AtomRow(
        (kind,),
        lower=lambda atom, value: lower(value),
        formula=entry_by_entry(formula),
        spellings=(Spelling(kind.__name__, latex=latex),),
    )


ROWS = (
    _row(sin, lambda value: jnp.sin(value), lambda v: sympy.sin(v), r"\sin"),
    _row(cos, lambda value: jnp.cos(value), lambda v: sympy.cos(v), r"\cos"),
    _row(tan, lambda value: jnp.tan(value), lambda v: sympy.tan(v), r"\tan"),
    _row(sinh, lambda value: jnp.sinh(value), lambda v: sympy.sinh(v), r"\sinh"),
    _row(tanh, lambda value: jnp.tanh(value), lambda v: sympy.tanh(v), r"\tanh"),
    _row(asinh, lambda value: jnp.arcsinh(value), lambda v: sympy.asinh(v), r"\operatorname{arsinh}"),
    _row(atanh, lambda value: jnp.arctanh(value), lambda v: sympy.atanh(v), r"\operatorname{artanh}"),
)

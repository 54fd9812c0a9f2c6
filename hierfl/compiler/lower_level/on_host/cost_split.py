"""The addends of a lower objective by how the host engine treats them."""

from __future__ import annotations

from typing import Any

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import Enclosure, Known
from hierfl.analysis.hoist import hoist
from hierfl.atoms.algebra import addends
from hierfl.compiler.host.standard_form import NoStandardFormError, StandardForm
from hierfl.compiler.lower_level.smoothness import nonsmooth_atom
from hierfl.language.function import UserAtom
from hierfl.language.levels import LowerLevel, averages_of


def split_cost(level: LowerLevel, known: Known, on_y: Known) -> tuple[list[Any], list[Any], list[Any]]:
    """The addends of the objective: quadratic ones, other smooth ones, and those for the standard form.

    ``on_y`` has the bounds of y on Y(x) as well: a term has to be smooth there alone.
    """
    quadratic: list[Any] = []
    smooth: list[Any] = []
    other: list[Any] = []
    ids = {v.id for v in level.variables}
    for term in addends(level.expression):
        if not any(v.id in ids for v in term.variables()):
            continue
        if is_quadratic(hoist([term], level.variables, known).expressions[0]):
            quadratic.append(term)
        elif _has_user_atom(term):
            smooth.append(term)
        elif any(True for _ in averages_of(term)):
            if nonsmooth_atom([term], ids, Enclosure(on_y)) is not None:
                raise NoStandardFormError("an average over samples of something that is not smooth in y")
            smooth.append(term)
        else:
            (other if _goes_to_cones(level, term, known, on_y) else smooth).append(term)
    return quadratic, smooth, other


def _has_user_atom(expression: Any) -> bool:
    return isinstance(expression, UserAtom) or any(map(_has_user_atom, getattr(expression, "args", ())))


def _goes_to_cones(level: LowerLevel, term: Any, known: Known, on_y: Known) -> bool:
    """Whether a term is piecewise quadratic, or not smooth; what needs other cones is smooth where it is finite."""
    try:
        form = StandardForm.of(level.sign * term, (), level.variables, known)
    except NoStandardFormError:
        return False
    return form.polyhedral or nonsmooth_atom([term], {v.id for v in level.variables}, Enclosure(on_y)) is not None

"""The lower level as one sparse parametric program, and what follows from it: solutions, solution sets, derivatives.

``LevelTemplate`` (an expression and constraints, canonicalised once) -> ``LevelForm`` (of one owner: theta from x, constants and rows) ->
``ConvexProgram`` (numbers) -> ``LevelSolver`` (solutions, chosen ones, responses). Everything is a function of theta alone, which is
computed from x and from the data of the owner that are handed in; nothing here knows a client by its index.

What is named here is loaded when it is first used: levels that a formula answers need none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hierfl.compiler.parametric.level_form import Gather, LevelForm, RowGroup, Thetas, distributed
    from hierfl.compiler.parametric.level_solver import LevelAnswer, LevelSolver, Upper
    from hierfl.compiler.parametric.linearised_form import LinearisedForm
    from hierfl.compiler.parametric.many_programs import ManyPrograms
    from hierfl.compiler.parametric.nearest_point import NearestPoint
    from hierfl.compiler.parametric.priced_form import PricedForm
    from hierfl.compiler.parametric.template import LevelTemplate

__all__ = [
    "Gather", "LevelAnswer", "LevelForm", "LevelSolver", "LevelTemplate", "LinearisedForm", "ManyPrograms", "NearestPoint", "PricedForm",
    "RowGroup", "Thetas", "Upper", "distributed",
]
_PLACES = {
    "Gather": "level_form", "LevelForm": "level_form", "RowGroup": "level_form", "Thetas": "level_form", "distributed": "level_form",
    "LevelAnswer": "level_solver", "LevelSolver": "level_solver", "Upper": "level_solver", "LevelTemplate": "template",
    "LinearisedForm": "linearised_form", "ManyPrograms": "many_programs", "NearestPoint": "nearest_point", "PricedForm": "priced_form",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(name)
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

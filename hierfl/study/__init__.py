"""Comparisons of methods at equal budgets: ``hf.Study`` runs them, ``adapter`` lets methods from outside take part, ``Comparison`` is what they gave."""

from typing import TYPE_CHECKING

from hierfl.near_names import doors
from hierfl.study.comparison import Comparison
from hierfl.study.counted_function import CountedFunction, adapter
from hierfl.study.study import Study

__all__ = ["Comparison", "CountedFunction", "Study", "adapter"]

if not TYPE_CHECKING:  # type-checkers know the names above
    __getattr__, __dir__ = doors("hierfl.study", __all__)

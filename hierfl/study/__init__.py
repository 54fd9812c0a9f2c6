"""Comparisons of methods at equal budgets: ``hf.Study`` runs them, ``adapter`` lets methods from outside take part, ``Comparison`` is what they gave."""

from hierfl.study.comparison import Comparison
from hierfl.study.counted_function import CountedFunction, adapter
from hierfl.study.study import Study

__all__ = ["Comparison", "CountedFunction", "Study", "adapter"]

"""Convex sets to projections: recognise the pieces, split into independent components, choose a projection for each.

The path of a constraint: ``recognise`` (CVXPY tree -> bounded terms -> pieces), ``members`` (numbers compiled), ``components``
(what is coupled), ``choose`` (the decision table), ``compiled_set`` (the blocks in turn), ``verify`` (against CVXPY).

What one convex term describes is a file in ``families`` and a row in its ``catalogue``. What several constraints describe
together is a file in ``blocks`` and a row in ``choose``. Both call ``hierfl.projections`` and say their own name and cost.
"""

from hierfl.compiler.sets.compile import compile_set
from hierfl.compiler.sets.compiled_set import CompiledSet

__all__ = ["CompiledSet", "compile_set"]

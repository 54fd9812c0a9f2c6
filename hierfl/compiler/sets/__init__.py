"""Convex sets to projections: recognise the pieces, split into independent components, choose a projection for each.

The path of a constraint: ``analysis.bounded_terms`` (CVXPY tree -> rows and bounded terms), ``members`` (numbers compiled), ``components``
(what is coupled), ``blocks`` (the projections and the decision table), ``compiled_set`` (the blocks in turn, how a set becomes
one, and the same by CVXPY).

What one convex term describes is a class in ``families`` and a place in its ``FAMILIES``. What several constraints describe
together is a class in ``blocks`` and a place in its ``KINDS``. Both call ``hierfl.projections`` and say their own name and cost.
"""

from hierfl.compiler.sets.compiled_set import CompiledSet, compile_set

__all__ = ["CompiledSet", "compile_set"]

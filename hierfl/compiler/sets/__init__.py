"""Convex sets to projections: recognise the pieces, split into independent components, choose a projection for each.

The path of a constraint: ``recognise`` (CVXPY tree -> pieces), ``members`` (numbers compiled), ``components`` (what is
coupled), ``choose`` (the decision table), ``blocks`` (one projection each).
"""

from hierfl.compiler.sets.compile import compile_set
from hierfl.compiler.sets.compiled_set import CompiledSet

__all__ = ["CompiledSet", "compile_set"]

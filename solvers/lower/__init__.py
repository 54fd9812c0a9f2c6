"""Solvers of the lower level; imported as ``hierfl.solvers.lower``."""

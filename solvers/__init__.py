"""Federated algorithms, one per file; imported as ``hierfl.solvers``."""

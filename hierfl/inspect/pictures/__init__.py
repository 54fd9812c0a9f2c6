"""Slices, surfaces and curves of runs: what is computed for them, and the figures."""

"""Curvature of the lower level: strong convexity or monotonicity, smoothness, symmetry."""

"""Expressions to JAX, constraints to projections, lower levels to exact oracles."""

"""Closed-form projections, pure JAX, one family of sets per file."""

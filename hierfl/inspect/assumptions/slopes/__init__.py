"""Lipschitz constants of f, of the lower gradient, of y(x) and of the implicit function."""

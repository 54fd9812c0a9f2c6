"""Derivatives of CVXPY expressions as CVXPY expressions, for the games whose players differentiate their own objectives."""

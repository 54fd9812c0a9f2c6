"""CVXPY expressions as JAX programs: the table of atoms, and programs in which every distinct subexpression runs once."""

"""The implicit function of a small problem as SymPy formulas."""

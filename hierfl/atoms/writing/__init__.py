"""How mathematics is written: phrases, and the pens that write them as LaTeX and as text."""

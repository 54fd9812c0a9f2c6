"""A declaration as a person reads it: plain text and LaTeX of expressions, and the statement of a whole problem."""

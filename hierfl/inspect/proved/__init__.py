"""A proved optimum: the bilevel problem as one program, and branch and bound on it."""

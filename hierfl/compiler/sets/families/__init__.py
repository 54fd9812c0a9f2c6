"""The sets that one convex term describes, a family a file; ``catalogue`` lists them."""

"""What can be proved of a declaration: roles, curvature, convexity."""

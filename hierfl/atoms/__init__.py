"""What every atom of CVXPY means, one row each: value, range, curvature, derivative, pieces, formula and notation."""

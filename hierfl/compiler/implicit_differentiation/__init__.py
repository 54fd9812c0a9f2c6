"""Gradients of the implicit function: the adjoint of the lower level's optimality conditions, and the gradient of f from it."""

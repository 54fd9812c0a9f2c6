"""The matrix of an affine expression in the flat y, found semantically: whatever the expression looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf

from hierfl.compiler.expressions.program import Program
from hierfl.jaxtools.cheap_jit import quick_jit


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The matrix at two random values of the parameters, in the flat (C-order) y; rows in Fortran order of the expression."""

    draws: tuple[sp.csr_array, sp.csr_array]

    @cached_property
    def constant(self) -> bool:
        """Whether it is the same at both."""
        first, second = self.draws
        scale = abs(first).max() if first.nnz else 0.0
        return (abs(first - second) > 1e-12 * scale).nnz == 0

    @cached_property
    def matrix(self) -> sp.csr_array:
        """The matrix; where it moves, absolute values that show the union of the patterns."""
        first, second = self.draws
        matrix = first if self.constant else sp.csr_array(abs(first) + abs(second))
        matrix.eliminate_zeros()
        matrix.sort_indices()
        return matrix

    def mapped(self, coordinates: sp.csr_array) -> Coefficients:
        """The coefficients of ``coordinates @ expression``."""
        first, second = (sp.csr_array(coordinates @ draw) for draw in self.draws)
        return Coefficients((first, second))


Draw = Sequence[np.ndarray]  # a value for each hoisted parameter


def coefficients(
    expression: Expression,
    variables: Sequence[cp.Variable],
    parameters: Sequence[cp.Parameter],
    draws: tuple[Draw, Draw],
) -> Coefficients:
    """Extract the coefficients of an affine expression of the twins ``variables`` at two draws of the parameters."""
    first, second = (_at(expression, variables, parameters, draw) for draw in draws)
    return Coefficients((first, second))


def random_draw(trees: Sequence[Expression], parameters: Sequence[cp.Parameter], program: Program, seed: int) -> Draw:
    """Values of the hoisted parameters at random values of the leaves below them, so that their relations hold.

    Where a tree is outside its domain there, its parameter gets a random value of the right sign instead.
    """
    rng = np.random.default_rng(seed)
    leaves = {leaf.id: leaf for tree in trees for leaf in [*tree.variables(), *tree.parameters()]}
    values = quick_jit(program)({leaf: _random_value(leaves[leaf], rng) for leaf in sorted(leaves)})
    independent = [_random_value(parameter, rng) for parameter in parameters]
    return [np.asarray(v) if np.isfinite(v).all() else other for v, other in zip(values, independent)]


def _random_value(leaf: Leaf, rng: np.random.Generator) -> np.ndarray:
    """A random value that respects the sign."""
    value = rng.standard_normal(leaf.shape)
    if leaf.attributes.get("PSD") or leaf.attributes.get("NSD"):
        return np.asarray(value @ value.T * (1.0 if leaf.attributes.get("PSD") else -1.0))
    if leaf.is_nonneg():
        return np.abs(value) + 0.1
    if leaf.is_nonpos():
        return -np.abs(value) - 0.1
    return np.asarray(value + value.T if leaf.attributes.get("symmetric") else value)


def _at(
    expression: Expression, variables: Sequence[cp.Variable], parameters: Sequence[cp.Parameter], draw: Draw
) -> sp.csr_array:
    for parameter, value in zip(parameters, draw):
        parameter.save_value(value)
    for variable in variables:
        variable.save_value(np.zeros(variable.shape))
    gradients = expression.grad
    blocks = []
    for variable in variables:
        gradient = gradients.get(variable)
        if gradient is None:
            block = sp.csr_array((expression.size, variable.size))
        else:
            block = sp.csr_array(sp.csc_array(np.atleast_2d(gradient) if np.isscalar(gradient) else gradient).T)
        order = np.arange(variable.size).reshape(variable.shape, order="F").ravel(order="C")
        blocks.append(sp.csr_array(block)[:, order])
    matrix = sp.csr_array(sp.hstack(blocks, format="csr"))
    matrix.eliminate_zeros()
    return matrix

"""A function as the program that JAX has traced, ready to be taken apart and put into others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from hierfl.jaxtools.product_rewriting import as_matrices


@dataclass(frozen=True, eq=False)
class Traced:
    """The program, with its products of matrices written as such, and the shapes of its result."""

    program: ClosedJaxpr
    result: Any

    @classmethod
    def of(cls, function: Callable[..., Any], *arguments: Any) -> Traced:
        """Trace the function for arguments of these shapes."""
        program, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return cls(as_matrices(program), result)

    def __call__(self, *arguments: Any) -> Any:
        """Evaluate the function; inside another trace its equations become part of that."""
        leaves = jaxpr_as_fun(self.program)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(self.result), leaves)

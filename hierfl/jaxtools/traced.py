"""A function as the program that JAX has traced, or compiled before it is called: then it says what a call needs in memory before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from hierfl.jaxtools.interruption import heed
from hierfl.jaxtools.thread_pool import apart


@dataclass(frozen=True, eq=False)
class Traced:
    """The program, and the shapes of its result."""

    program: ClosedJaxpr
    result: Any

    @classmethod
    def of(cls, function: Callable[..., Any], *arguments: Any) -> Traced:
        """Trace the function for arguments of these shapes."""
        program, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return cls(program, result)

    def __call__(self, *arguments: Any) -> Any:
        """Evaluate the function; inside another trace its equations become part of that."""
        leaves = jaxpr_as_fun(self.program)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(self.result), leaves)


class Ahead(NamedTuple):
    """A compiled program for arguments of certain shapes, and the bytes that a call takes beside its arguments.

    The bytes are those of XLA's plan, and 0 on a backend that does not tell its plan.
    """

    run: Callable[..., Any]
    working: int

    @classmethod
    def of(cls, function: Callable[..., Any], *arguments: Any) -> Ahead:
        """Compile for arguments like these: arrays, or their shapes."""
        lowered = jax.jit(function).lower(*arguments)
        heed()
        compiled = apart(lowered.compile)
        plan = compiled.memory_analysis()
        return cls(compiled, 0 if plan is None else int(plan.temp_size_in_bytes + plan.output_size_in_bytes))


def size_of(tree: Any) -> int:
    """The bytes that arrays take, or that arrays of these shapes would."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

"""A function as the program that JAX has traced, rewritten or compiled before it is called.

A program that is compiled ahead of time says what a call needs in memory before it starts. Products of matrices are written as such
first: batching makes a product of two matrices one of tensors, since directions, signs and classes become three dimensions of rows, and
samples get a dimension of one. XLA copies the other operand of such a product, transposed, before it calls the CPU's kernel for
matrices, which takes either order as it is. Without those copies a local step on a batch of 32 takes a sixth less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun
from jax.extend.core.primitives import dot_general_p
from jaxtyping import Array

from hierfl.jaxtools.interruption import heed
from hierfl.jaxtools.thread_pool import apart


def as_matrices(program: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, with every product that is one of two matrices, but for its shape, as a product of two matrices."""
    return ClosedJaxpr(_rewritten(program.jaxpr, {}), program.consts)


class _Matrix(NamedTuple):
    """How an operand's shape is one of a matrix, and which of its two dimensions is summed over."""

    shape: tuple[int, int]
    summed: int

    @classmethod
    def of(cls, shape: tuple[int, ...], summed: tuple[int, ...], batched: tuple[int, ...]) -> _Matrix | None:
        """The matrix, or None where the operand is none as it is stored: a vector, a batch, the summed dimension amid others."""
        kept = [place for place, size in enumerate(shape) if size != 1]
        inner = [place for place in kept if place in summed]
        if len(kept) < 2 or len(inner) != 1 or any(place in batched for place in kept):
            return None
        rows, length = math.prod(shape[place] for place in kept if place not in inner), shape[inner[0]]
        if kept[-1] == inner[0]:
            return cls((rows, length), 1)
        return cls((length, rows), 0) if kept[0] == inner[0] else None


def _rewritten(jaxpr: Jaxpr, done: dict[int, Jaxpr]) -> Jaxpr:
    """The rewritten program: one that occurs twice is rewritten once, and one in which nothing changes stays as JAX knows it."""
    if id(jaxpr) not in done:
        equations = [part for equation in jaxpr.eqns for part in _equations(equation, done)]
        changed = any(new is not old for new, old in zip(equations, jaxpr.eqns))
        done[id(jaxpr)] = jaxpr.replace(eqns=equations) if changed else jaxpr
    return done[id(jaxpr)]


def _equations(equation: JaxprEqn, done: dict[int, Jaxpr]) -> list[JaxprEqn]:
    """The equations that take the equation's place."""
    if equation.primitive is dot_general_p:
        return _product(equation)

    def inside(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            rewritten = _rewritten(value.jaxpr, done)
            return value if rewritten is value.jaxpr else ClosedJaxpr(rewritten, value.consts)
        return _rewritten(value, done) if isinstance(value, Jaxpr) else value

    params = dict(equation.params)
    for name, value in equation.params.items():
        parts, form = jax.tree.flatten(value, is_leaf=lambda part: isinstance(part, ClosedJaxpr | Jaxpr))
        rewritten = [inside(part) for part in parts]
        if any(new is not old for new, old in zip(rewritten, parts)):
            params[name] = jax.tree.unflatten(form, rewritten)
    changed = any(params[name] is not value for name, value in equation.params.items())
    return [equation.replace(params=params) if changed else equation]


def _product(equation: JaxprEqn) -> list[JaxprEqn]:
    """The equations of a product, with its operands and its result reshaped where they are matrices but for their shape."""
    summed, batched = equation.params["dimension_numbers"]
    operands: list[Any] = [operand.aval for operand in equation.invars]
    shapes = [operand.shape for operand in operands]
    left, right = map(_Matrix.of, shapes, summed, batched)
    if left is None or right is None or [left.shape, right.shape] == shapes:
        return [equation]
    params = equation.params | {"dimension_numbers": (((left.summed,), (right.summed,)), ((), ()))}
    result: Any = equation.outvars[0]

    def product(a: Array, b: Array) -> Array:
        matrix = dot_general_p.bind(a.reshape(left.shape), b.reshape(right.shape), **params)
        return jnp.reshape(matrix, result.aval.shape)

    with jax.enable_x64(True):  # users' functions may hold double precision within a program in single
        part = jax.make_jaxpr(product)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands)).jaxpr
    names = dict(zip([*part.invars, *part.outvars], [*equation.invars, result]))

    def renamed(atoms: list[Any]) -> list[Any]:
        return [names.get(atom, atom) if isinstance(atom, Var) else atom for atom in atoms]

    return [step.replace(invars=renamed(step.invars), outvars=renamed(step.outvars)) for step in part.eqns]


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

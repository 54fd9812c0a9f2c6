"""Products of matrices, written as such before a program is compiled.

Batching makes a product of two matrices one of tensors: directions, signs and classes become three dimensions of rows, samples
get a dimension of one. XLA copies the other operand of such a product, transposed, before it calls the CPU's kernel for
matrices, which takes either order as it is. Without those copies a local step on a batch of 32 takes a sixth less.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.extend.core.primitives import dot_general_p


def as_matrices(program: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, with every product that is one of two matrices, but for its shape, as a product of two matrices."""
    return ClosedJaxpr(_rewritten(program.jaxpr, {}), program.consts)


class _Matrix(NamedTuple):
    """How an operand's shape is one of a matrix, and which of its two dimensions is summed over."""

    shape: tuple[int, int]
    summed: int

    @classmethod
    def of(cls, shape: tuple[int, ...], summed: tuple[int, ...], batched: tuple[int, ...]) -> _Matrix | None:
        """None where it is not one as it is stored: a vector, a batch, or with the summed dimension amid the others."""
        kept = [place for place, size in enumerate(shape) if size != 1]
        inner = [place for place in kept if place in summed]
        if len(kept) < 2 or len(inner) != 1 or any(place in batched for place in kept):
            return None
        rows, length = math.prod(shape[place] for place in kept if place not in inner), shape[inner[0]]
        if kept[-1] == inner[0]:
            return cls((rows, length), 1)
        return cls((length, rows), 0) if kept[0] == inner[0] else None


def _rewritten(jaxpr: Jaxpr, done: dict[int, Jaxpr]) -> Jaxpr:
    """One that occurs twice is rewritten once, and where nothing changes it stays the one that JAX knows."""
    if id(jaxpr) not in done:
        equations = [part for equation in jaxpr.eqns for part in _equations(equation, done)]
        changed = any(new is not old for new, old in zip(equations, jaxpr.eqns))
        done[id(jaxpr)] = jaxpr.replace(eqns=equations) if changed else jaxpr
    return done[id(jaxpr)]


def _equations(equation: JaxprEqn, done: dict[int, Jaxpr]) -> list[JaxprEqn]:
    """What takes the equation's place."""
    if equation.primitive is dot_general_p:
        return _product(equation)

    def inside(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            found = _rewritten(value.jaxpr, done)
            return value if found is value.jaxpr else ClosedJaxpr(found, value.consts)
        return _rewritten(value, done) if isinstance(value, Jaxpr) else value

    params = dict(equation.params)
    for name, value in equation.params.items():
        parts, form = jax.tree.flatten(value, is_leaf=lambda part: isinstance(part, ClosedJaxpr | Jaxpr))
        found = [inside(part) for part in parts]
        if any(new is not old for new, old in zip(found, parts)):
            params[name] = jax.tree.unflatten(form, found)
    changed = any(params[name] is not value for name, value in equation.params.items())
    return [equation.replace(params=params) if changed else equation]


def _product(equation: JaxprEqn) -> list[JaxprEqn]:
    summed, batched = equation.params["dimension_numbers"]
    operands: list[Any] = [operand.aval for operand in equation.invars]
    shapes = [operand.shape for operand in operands]
    left, right = map(_Matrix.of, shapes, summed, batched)
    if left is None or right is None or [left.shape, right.shape] == shapes:
        return [equation]
    params = equation.params | {"dimension_numbers": (((left.summed,), (right.summed,)), ((), ()))}
    result: Any = equation.outvars[0]

    def product(a: Array, b: Array) -> Array:
        found = dot_general_p.bind(a.reshape(left.shape), b.reshape(right.shape), **params)
        return jnp.reshape(found, result.aval.shape)

    with jax.enable_x64(True):  # users' functions may hold double precision within a program in single
        part = jax.make_jaxpr(product)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands)).jaxpr
    names = dict(zip([*part.invars, *part.outvars], [*equation.invars, result]))

    def renamed(atoms: list[Any]) -> list[Any]:
        return [names.get(atom, atom) if isinstance(atom, Var) else atom for atom in atoms]

    return [step.replace(invars=renamed(step.invars), outvars=renamed(step.outvars)) for step in part.eqns]

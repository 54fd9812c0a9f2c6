"""Expressions to JAX: a CVXPY tree becomes a flat program in which every distinct subexpression runs once.

Users write ``w @ image`` twice and XLA does not merge the backward passes, so common subexpressions are
merged here, structurally. A program is evaluated on an environment (leaf id -> array, one value each) and
on ``Rows`` (leaf id -> a batch of values), over which ``E`` and ``total`` average.
Derivatives of atoms are JAX's where a game's gradients have no symbolic rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.leaf import Leaf
from jax import Array

from hierfl.atoms.algebra import sparse_factor
from hierfl.atoms.table import arguments_of, lowering_of, row_of
from hierfl.compiler.expressions.law_kinks import LawKinks
from hierfl.errors import DeclarationError, UnsupportedAtomError
from hierfl.language.calculus.derivative import OwnGradient, Pullback, leaves_of
from hierfl.language.expectation import RowAggregate, SampleAverage, total

Environment = Mapping[int, Any]


class Rows(NamedTuple):
    """A batch of samples: what ``E`` averages over.

    ``values[leaf id]`` has shape ``(B, *leaf.shape)``; ``weights[leaf id]`` (B,) sums to one for a minibatch
    and to the chunk's share for a piece of the full data; ``counts[leaf id]`` is the holder's number of
    samples, which turns a mean into a total. A table that is absent contributes zero. ``laws[leaf id]`` has the
    integrals of the law that nodes of one scalar stand for, which mend the averages of kinks.
    """

    values: dict[int, Array]
    weights: dict[int, Array]
    counts: dict[int, Array]
    laws: dict[int, Array] | None = None


NO_ROWS = Rows({}, {}, {})


@dataclass(frozen=True)
class Node:
    """One operation: its function and the places of its arguments in the program, or a constant."""

    apply: Callable[..., Array]
    args: tuple[int, ...]
    shape: tuple[int, ...]
    text: str
    constant: np.ndarray | None = None


@dataclass(eq=False)
class Program:
    """A straight-line program for several CVXPY expressions with shared subexpressions merged.

    Raises ``UnsupportedAtomError`` for an atom that hierfl does not compile; names it and says why.
    """

    expressions: Sequence[Any]
    _nodes: list[Node] = field(default_factory=list)
    _leaves: dict[int, int] = field(default_factory=dict)  # place -> leaf id
    _averages: dict[int, _Average | _Aggregate] = field(default_factory=dict)
    _places: dict[Any, int] = field(default_factory=dict)  # structural key -> place
    _outputs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        memo: dict[int, int] = {}
        self._outputs = [self._place(expression, memo) for expression in self.expressions]

    def __call__(
        self, environment: Environment, rows: Rows = NO_ROWS, given: Mapping[int, Array] | None = None
    ) -> tuple[Array, ...]:
        """Values of the expressions; each has its expression's shape. What is ``given`` has those values, by place."""
        values: list[Array] = []
        precision = self.precision(environment)
        for place, node in enumerate(self._nodes):
            if given is not None and place in given:
                value = given[place]
            elif node.constant is not None:
                value = jnp.asarray(node.constant, precision)
            elif place in self._leaves:
                value = jnp.asarray(environment[self._leaves[place]])
                value = value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(precision)
            elif place in self._averages:
                value = self._averages[place](environment, rows)
            else:
                value = node.apply(*(values[argument] for argument in node.args))
            values.append(_shaped(value, node))
        return tuple(values[place] for place in self._outputs)

    @property
    def places(self) -> tuple[int, ...]:
        """Where the expressions are among all operations; equal ones are at one place."""
        return tuple(self._outputs)

    def precision(self, environment: Environment) -> Any:
        """The precision of the leaves, which constants take too, so that a float32 computation stays one."""
        held = [jnp.asarray(environment[leaf]).dtype for leaf in self._leaves.values() if leaf in environment]
        floating = [dtype for dtype in held if jnp.issubdtype(dtype, jnp.floating)]
        return jnp.result_type(*floating) if floating else jnp.zeros(0).dtype

    def _place(self, expression: Any, memo: dict[int, int]) -> int:
        if id(expression) not in memo:
            memo[id(expression)] = self._add(expression, memo)
        return memo[id(expression)]

    def _add(self, expression: Any, memo: dict[int, int]) -> int:
        shape = tuple(expression.shape)
        if isinstance(expression, cp.Constant):
            value = _dense(expression.value).reshape(shape)
            key: Any = ("constant", shape, value.tobytes())
            return self._append(key, Node(_never, (), shape, "constant", value))
        if isinstance(expression, Leaf):
            place = self._append(("leaf", expression.id), Node(_never, (), shape, expression.name()))
            self._leaves[place] = expression.id
            return place
        if isinstance(expression, SampleAverage | RowAggregate):
            average = (_Average if isinstance(expression, SampleAverage) else _Aggregate).of(expression)
            key = (type(expression).__name__, _data_key(expression), average.program.signature())
            place = self._append(key, Node(_never, (), shape, expression.name()))
            self._averages.setdefault(place, average)
            return place
        if (factor := sparse_factor(expression)) is not None:
            at, matrix = factor
            other = self._place(expression.args[1 - at], memo)
            key = ("sparse product", shape, at, *(part.tobytes() for part in (matrix.indptr, matrix.indices, matrix.data)), other)
            times = partial(sparse_times, sp.csr_array(matrix.T) if at else matrix)
            apply = (lambda value: times(value.T).T) if at else times
            return self._append(key, Node(apply, (other,), shape, type(expression).__name__))
        apply = _function_of(expression)
        args = tuple(self._place(argument, memo) for argument in arguments_of(expression))
        key = (type(expression), shape, _data_key(expression), args)
        return self._append(key, Node(apply, args, shape, type(expression).__name__))

    def _append(self, key: Any, node: Node) -> int:
        if key not in self._places:
            self._places[key] = len(self._nodes)
            self._nodes.append(node)
        return self._places[key]

    def signature(self) -> Any:
        """A hashable key: equal for programs that compute the same from the same leaves."""
        return (tuple(self._places), tuple(self._outputs))

    def __len__(self) -> int:
        return len(self._nodes) + sum(len(average.program) for average in self._averages.values())


@dataclass(frozen=True)
class _Average:
    """The mean (or total) over rows of a per-sample program."""

    program: Program
    leaves: frozenset[int]
    shape: tuple[int, ...]
    is_total: bool
    kinks: LawKinks | None
    switches: Program

    @classmethod
    def of(cls, expression: SampleAverage) -> _Average:
        inner = expression.per_sample
        leaves = frozenset(leaf.id for leaf in [*inner.variables(), *inner.parameters()])
        kinks = LawKinks.of(inner)
        switches = Program([] if kinks is None else [one.switch for one in kinks.crossed])
        program = Program([inner, *(() if kinks is None else [one.atom for one in kinks.crossed])])
        return cls(program, leaves, tuple(expression.shape), isinstance(expression, total), kinks, switches)

    def __call__(self, environment: Environment, rows: Rows) -> Array:
        batched = {leaf: value for leaf, value in rows.values.items() if leaf in self.leaves}
        if not batched:
            return jnp.zeros(self.shape, self.program.precision(environment))
        first = next(iter(batched))

        def one(row: dict[int, Array]) -> Array:
            return self.program({**environment, **row})[0]

        if batched[first].shape[0] == 1:  # a product of a matrix and a vector is eight times as fast as one of two matrices
            per_row = one({leaf: value[0] for leaf, value in batched.items()})[None]
        else:
            per_row = jax.vmap(one)(batched)
        mean = jnp.tensordot(jnp.asarray(rows.weights[first], per_row.dtype), per_row, axes=1)
        if self.kinks is not None and set(batched) == {self.kinks.sample.id} <= set(rows.laws or ()):
            mean = mean + self._beyond_nodes(environment, rows, self.kinks)
        return mean * jnp.asarray(rows.counts[first], per_row.dtype) if self.is_total else mean

    def _beyond_nodes(self, environment: Environment, rows: Rows, kinks: LawKinks) -> Array:
        """What kinks add to the mean over nodes that stand for a law."""
        assert rows.laws is not None
        leaf = kinks.sample.id
        nodes = rows.values[leaf], rows.weights[leaf]
        at_zero = self.switches({**environment, leaf: jnp.zeros(kinks.sample.shape, nodes[0].dtype)})

        def integrand(d: Array, given: Mapping[int, Array]) -> tuple[Array, ...]:
            return self.program({**environment, leaf: d}, given=given)

        return kinks.added(integrand, self.program.places[1:], at_zero, nodes, rows.laws[leaf])


@dataclass(frozen=True)
class _Aggregate:
    """What all rows of a table say together of a per-sample program."""

    program: Program
    leaves: frozenset[int]
    node: RowAggregate

    @classmethod
    def of(cls, expression: RowAggregate) -> _Aggregate:
        leaves = frozenset(leaf.id for leaf in [*expression.variables(), *expression.parameters()])
        return cls(Program(expression.args), leaves, expression)

    def __call__(self, environment: Environment, rows: Rows) -> Array:
        batched = {leaf: value for leaf, value in rows.values.items() if leaf in self.leaves}
        if not batched:
            return jnp.zeros((), self.program.precision(environment))
        values, *columns = jax.vmap(lambda row: self.program({**environment, **row}))(batched)
        first = next(iter(batched))
        weights, count = (jnp.asarray(of[first], values.dtype) for of in (rows.weights, rows.counts))
        return self.node.reduce(jnp.reshape(values, (-1,)), columns, weights, count)


def _function_of(expression: Any) -> Callable[..., Array]:
    """The JAX function of one node's arguments. A node that holds an expression of its own has a program for it."""
    if isinstance(expression, Pullback):
        return pullback_of(expression, _function_of(expression.node))
    if isinstance(expression, OwnGradient):
        return own_gradient_of(expression, _compiled(expression.cost))
    return lowering_of(expression, _compiled)


def _compiled(expression: Any) -> Callable[[Environment], Array]:
    program = Program([expression])
    return lambda environment: program(environment)[0]


def sparse_times(matrix: sp.csr_array, other: Array) -> Array:
    """A constant sparse matrix times a vector or a matrix: dense where that is no larger than a few times its entries."""
    if matrix.shape[0] * matrix.shape[1] <= 8 * max(matrix.nnz, 1000):
        return jnp.asarray(matrix.toarray(), other.dtype) @ other
    rows, columns = (part.astype(np.int32) for part in matrix.tocoo().coords)
    numbers = jnp.asarray(matrix.data, other.dtype).reshape(-1, *[1] * (other.ndim - 1))
    return jnp.zeros((matrix.shape[0], *other.shape[1:]), other.dtype).at[rows].add(numbers * other[columns])


def _never() -> Array:
    raise AssertionError("leaves and averages are evaluated by their program")


def _shaped(value: Array, node: Node) -> Array:
    if jnp.shape(value) == node.shape:
        return value
    if [n for n in jnp.shape(value) if n != 1] != [n for n in node.shape if n != 1]:
        raise DeclarationError(f"{node.text} returned an array of shape {jnp.shape(value)}; declared {node.shape}.")
    return jnp.reshape(value, node.shape)


def _dense(value: Any) -> np.ndarray:
    dense = np.asarray(value.toarray() if sp.issparse(value) else value)
    if np.iscomplexobj(dense):
        raise DeclarationError(f"hierfl treats real numbers only; found the complex constant {dense}.")
    return dense.astype(float)


def _data_key(expression: Any) -> Any:
    """The atom's own settings (axis, order, index, ...) as a hashable key; unknown ones never merge."""
    return _hashable(expression.get_data(), expression) if row_of(expression).shared else id(expression)


def _hashable(data: Any, owner: Any) -> Any:
    if data is None or isinstance(data, (bool, int, float, Fraction, str)):
        return data
    if isinstance(data, cp.Constant):
        return ("constant", tuple(data.shape), _dense(data.value).tobytes())
    if isinstance(data, Leaf):
        return ("leaf", data.id)
    if isinstance(data, slice):
        return ("slice", data.start, data.stop, data.step)
    if isinstance(data, (tuple, list)):
        return tuple(_hashable(item, owner) for item in data)
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        return (array.shape, array.dtype.str, array.tobytes())
    if callable(data):
        return id(data)
    return id(owner)


def pullback_of(atom: Pullback, function: Callable[..., Array]) -> Callable[..., Array]:
    """The adjoint of the node's argument, given the node's JAX function.

    Raises ``UnsupportedAtomError`` for an atom that holds expressions beside its arguments.
    """
    node, place = atom.node, atom.index
    if len(arguments_of(node)) != len(node.args):
        raise UnsupportedAtomError(f"hierfl has no derivative of {node.name()} in a player's objective.")

    def pullback(adjoint: Array, *values: Array) -> Array:
        point = list(values) or [jnp.zeros(argument.shape, adjoint.dtype) for argument in node.args]

        def of_argument(value: Array) -> Array:
            return jnp.reshape(function(*point[:place], value, *point[place + 1 :]), node.shape)

        return jax.vjp(of_argument, point[place])[1](jnp.reshape(adjoint, node.shape))[0]

    return pullback


def own_gradient_of(atom: OwnGradient, cost: Callable[[dict[int, Any]], Array]) -> Callable[..., Array]:
    """Each player's derivative of its own cost, given the costs as a function of an environment."""
    leaves = [leaf.id for leaf in leaves_of(atom.cost)]

    def own_gradient(*values: Array) -> Array:
        environment = dict(zip(leaves, values))
        variable = environment[atom.variable.id]

        def of_player(player: Array) -> Array:
            def of_row(row: Array) -> Array:
                return cost({**environment, atom.variable.id: variable.at[player].set(row)})[player]

            return jax.grad(of_row)(variable[player])

        return jax.vmap(of_player)(jnp.arange(variable.shape[0]))

    return own_gradient

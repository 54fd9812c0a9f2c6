"""What a CVXPY tree *says*, before anybody decides how to write it.

CVXPY stores ``sum_squares(x - y)`` as ``quad_over_lin(x + -y, 1)`` and ``2 * x`` as ``multiply(Promote(2), x)``.
``read`` turns a tree into ``Node``s whose heads are the operations that the user meant; ``text`` and ``latex`` are
then two tables from heads to spellings. A reader is registered for each class that needs one; any other atom
becomes a function of its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import singledispatch
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import constraints as cones
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.affine.concatenate import Concatenate
from cvxpy.atoms.affine.diag import diag_mat, diag_vec
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.vstack import Vstack
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.axis_atom import AxisAtom
from cvxpy.atoms.quad_form import SymbolicQuadForm
from cvxpy.atoms.suppfunc import SuppFuncAtom
from cvxpy.expressions.leaf import Leaf

from hierfl.language.expectation import SampleAverage
from hierfl.language.function import UserAtom


@dataclass(frozen=True, eq=False)
class Node:
    """One operation of the written mathematics.

    ``value`` is what it is besides its operands (a leaf's name, a number, an array, an index); ``options`` are named
    settings that differ from their defaults.
    """

    head: str
    args: tuple[Node, ...] = ()
    value: Any = None
    options: tuple[tuple[str, Any], ...] = ()
    shape: tuple[int, ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        """The setting of that name."""
        return dict(self.options).get(name, default)

    def is_number(self, value: float | None = None) -> bool:
        """Whether it is a number (that number)."""
        return self.head == "number" and (value is None or bool(self.value == value))


def number(value: float) -> Node:
    """A scalar constant; a negative one is the negation of its absolute value."""
    return negated(number(-value)) if np.isrealobj(value) and value < 0 else Node("number", value=value)


def negated(node: Node) -> Node:
    """Minus the node, without double or idle signs."""
    if node.head == "neg":
        return node.args[0]
    return node if node.is_number(0) else Node("neg", (node,), shape=node.shape)


def added(*terms: Node) -> Node:
    """The sum of the nodes; a nested sum joins the outer one."""
    flat = tuple(part for term in terms for part in (term.args if term.head == "add" else (term,)))
    return flat[0] if len(flat) == 1 else Node("add", flat, shape=np.broadcast_shapes(*(t.shape for t in flat)))


def marked(node: Node, indices: Mapping[int, str], holder: str = "") -> Node:
    """The same mathematics seen by one party.

    Parameters
    ----------
    node
        What :func:`read` returned.
    indices
        Index by the ``id`` of a leaf: ``{rho.id: "i"}`` makes rho into rho_i.
    holder
        Whose samples the means are over: ``E`` becomes ``E_holder``.
    """
    args = tuple(marked(arg, indices, holder) for arg in node.args)
    options = node.options
    if node.head == "name" and node.option("id") in indices:
        options = (*options, ("index", indices[node.option("id")]))
    if node.head == "average" and holder:
        options = (*options, ("holder", holder))
    return replace(node, args=args, options=options)


_HEADS: dict[type, str] = {
    cp.atoms.Sum: "sum",
    cp.atoms.Prod: "prod",
    cp.atoms.Trace: "trace",
    cp.atoms.GeoMean: "geo_mean",
    cp.atoms.GeoMeanApprox: "geo_mean",
    cp.atoms.QuadForm: "quad_form",
    SymbolicQuadForm: "quad_form",
    cp.atoms.MatrixFrac: "matrix_frac",
    cp.normNuc: "norm_nuc",
    Hstack: "hstack",
    Vstack: "vstack",
    Concatenate: "concatenate",
    diag_vec: "diag",
    diag_mat: "diag",
    Promote: "promote",
    SuppFuncAtom: "suppfunc",
    cones.PowCone3DApprox: "PowCone3D",
}

_OPTIONS: dict[str, dict[str, Any]] = {
    "huber": {"M": 1},
    "sum_largest": {"k": None},
    "lambda_sum_largest": {"k": None},
    "diag": {"k": 0},
    "cumsum": {"axis": 0},
    "cumprod": {"axis": 0},
    "cummax": {"axis": 0},
    "concatenate": {"axis": None},
    "gmatmul": {"A": None},
    "promote": {"shape": None},
    "broadcast_to": {"shape": None},
    "PowCone3D": {"alpha": None},
    "PowConeND": {"alpha": None, "axis": 0},
    "RelEntrConeQuad": {"m": None, "k": None},
    "OpRelEntrConeQuad": {"m": None, "k": None},
}
"""Settings of each head that are not operands, with the default that needs no mention."""

_AXIS_OPTIONS = {"axis": None, "keepdims": False}


@singledispatch
def read(part: Any) -> Node:
    """The mathematics of a CVXPY expression or constraint; an unknown atom is a function of its own name."""
    return _operation(part, tuple(read(argument) for argument in part.args))


def _operation(part: Any, args: tuple[Node, ...], head: str | None = None) -> Node:
    head = head or _HEADS.get(type(part), type(part).__name__)
    defaults = _OPTIONS.get(head, _AXIS_OPTIONS if isinstance(part, AxisAtom) else {})
    given = ((name, getattr(part, name), default) for name, default in defaults.items())
    options = tuple((name, _setting(value)) for name, value, default in given if not _is_default(value, default))
    return Node(head, args, options=options, shape=tuple(part.shape))


def _setting(value: Any) -> Any:
    if isinstance(value, cp.Expression):
        return read(_bare(value))
    return value_node(value) if isinstance(value, np.ndarray) else value


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, cp.Constant):
        value = value.value
    return np.shape(value) == () and value == default


# Leaves


@read.register(Leaf)
def _leaf(leaf: Any) -> Node:
    return Node("name", value=leaf.name(), options=(("id", leaf.id),), shape=tuple(leaf.shape))


@read.register(cp.Constant)
def _constant(constant: cp.Constant) -> Node:
    if constant._name:
        return Node("name", value=constant._name, shape=tuple(constant.shape))
    return value_node(constant.value)


def value_node(value: Any) -> Node:
    """A number or an array as a node."""
    if np.shape(value) == ():
        return number(np.asarray(value).item())
    return Node("array", value=value, shape=tuple(value.shape))


@read.register(SampleAverage)
def _average(average: SampleAverage) -> Node:
    samples = tuple(parameter.name() for parameter in average.per_sample.parameters())
    return Node(
        "average",
        (read(average.per_sample),),
        value=average.symbol,
        options=(("over", samples),),
        shape=tuple(average.shape),
    )


@read.register(UserAtom)
def _user(atom: UserAtom) -> Node:
    name = "f" if atom.label_name == "<lambda>" else atom.label_name
    return Node("call", tuple(read(argument) for argument in atom.args), value=name, shape=tuple(atom.shape))


# Sums, products and what CVXPY inserts between their operands


def _bare(expr: Any) -> Any:
    """The expression without promotion and broadcasting, which the reader supplies himself."""
    while isinstance(expr, (Promote, cp.broadcast_to)):
        expr = expr.args[0]
    return expr


def _operands(expr: Any) -> tuple[Node, ...]:
    """The operands of an operator that broadcasts; a promotion is kept only where it decides the shape."""
    bare = [_bare(argument) for argument in expr.args]
    if np.broadcast_shapes(*(b.shape for b in bare)) != expr.shape:
        bare = expr.args
    return tuple(read(argument) for argument in bare)


@read.register(AddExpression)
def _add(expr: Any) -> Node:
    return replace(added(*_operands(expr)), shape=tuple(expr.shape))


@read.register(NegExpression)
def _neg(expr: Any) -> Node:
    return negated(read(expr.args[0]))


def _product(head: str, expr: Any, factors: tuple[Node, ...]) -> Node:
    """A product or quotient; the sign of the first factor is the sign of the whole, and a factor 1 says nothing."""
    first, second = factors
    if head == "scale" and first.is_number(1) and second.shape == expr.shape:
        return second
    if first.head == "neg":
        return negated(_product(head, expr, (first.args[0], second)))
    return Node(head, (first, second), shape=tuple(expr.shape))


@read.register(cp.multiply)
def _multiply(expr: Any) -> Node:
    factors = _operands(expr)
    return _product("scale" if any(f.shape == () for f in factors) else "multiply", expr, factors)


@read.register(DivExpression)
def _divide(expr: Any) -> Node:
    whole = expr.args[0]
    if isinstance(whole, cp.atoms.Sum) and whole.axis is None and read(expr.args[1]).is_number(whole.args[0].size):
        return _operation(whole, (read(whole.args[0]),), head="mean")
    return _product("divide", expr, _operands(expr))


@read.register(cp.atoms.MulExpression)
def _matmul(expr: Any) -> Node:
    left, right = expr.args
    if all(isinstance(a, cp.reshape) and a.args[0].ndim == 1 for a in (left, right)) and left.shape[1] == 1:
        return Node("outer", (read(left.args[0]), read(right.args[0])), shape=tuple(expr.shape))
    return _product("matmul", expr, (read(left), read(right)))


@read.register(cp.atoms.Sum)
def _sum(expr: Any) -> Node:
    """A sum; ``trace(A @ B)``, which CVXPY stores as ``sum(multiply(A, B.T))``, is a trace again."""
    summand = read(expr.args[0])
    if expr.axis is None and summand.head == "multiply" and summand.args[1].head == "transpose":
        left, right = summand.args
        return Node("trace", (Node("matmul", (left, right.args[0]), shape=(left.shape[0], left.shape[0])),))
    return _operation(expr, (summand,))


@read.register(cp.minimum)
@read.register(cp.maximum)
def _extreme(expr: Any) -> Node:
    return _operation(expr, _operands(expr))


# Atoms that CVXPY spells differently from its users


@read.register(cp.quad_over_lin)
def _quad_over_lin(expr: Any) -> Node:
    numerator, denominator = (read(argument) for argument in expr.args)
    if denominator.is_number(1):
        return _operation(expr, (numerator,), head="sum_squares")
    return _operation(expr, (numerator, denominator))


@read.register(cp.atoms.Power)
def _power(expr: Any) -> Node:
    base = read(expr.args[0])
    if not isinstance(expr.p, cp.Constant):
        return Node("power", (base, read(expr.p)), shape=tuple(expr.shape))
    exponent = float(expr.p.value)
    named = {2.0: "square", 0.5: "sqrt", -1.0: "inv_pos"}.get(exponent)
    if named:
        return Node(named, (base,), shape=tuple(expr.shape))
    return Node("power", (base, _ratio(exponent)), shape=tuple(expr.shape))


def _ratio(value: float) -> Node:
    """A number, as the fraction that it is when no short decimal says it."""
    fraction = Fraction(value).limit_denominator(64)
    if float(f"{value:g}") == value or abs(float(fraction) - value) > 1e-14:
        return number(value)
    quotient = Node("divide", (number(abs(fraction.numerator)), number(fraction.denominator)))
    return negated(quotient) if value < 0 else quotient


@read.register(cp.atoms.Pnorm)
def _pnorm(expr: Any) -> Node:
    argument = expr.args[0]
    p = float(expr.p)
    if p != 2:
        norm = _operation(expr, (read(argument),), head="pnorm")
        return replace(norm, options=(("p", _ratio(p)), *norm.options))
    if expr.axis is None and isinstance(argument, cp.reshape) and argument.args[0].ndim == 2:
        argument = argument.args[0]
    frobenius = expr.axis is None and argument.ndim == 2
    return _operation(expr, (read(argument),), head="norm_fro" if frobenius else "norm2")


@read.register(cp.atoms.GeoMean)
def _geo_mean(expr: Any) -> Node:
    node = _operation(expr, (read(expr.args[0]),))
    weights = expr.get_data()[0]
    if weights is None or len(set(weights)) == 1:
        return node
    return replace(node, options=(("p", value_node(np.asarray(weights, dtype=float))), *node.options))


@read.register(cp.reshape)
def _reshape(expr: Any) -> Node:
    argument = expr.args[0]
    if argument.shape == expr.shape:
        return read(argument)
    node = Node(
        "reshape", (read(argument),), value=tuple(expr.shape), options=(("order", expr.order),), shape=tuple(expr.shape)
    )
    return replace(node, head="vec", value=None) if expr.ndim == 1 and argument.ndim > 1 else node


@read.register(cp.transpose)
def _transpose(expr: Any) -> Node:
    node = Node("transpose", (read(expr.args[0]),), shape=tuple(expr.shape))
    reverse = list(reversed(range(expr.ndim)))
    if expr.axes is None or list(expr.axes) == reverse:
        return node if expr.ndim > 1 else node.args[0]
    return replace(node, head="permute_dims", options=(("axes", tuple(expr.axes)),))


@read.register(index)
@read.register(special_index)
def _index(expr: Any) -> Node:
    *_, key = expr.get_data()
    key = key if isinstance(key, tuple) else (key,)
    return Node("index", (read(expr.args[0]),), value=key, shape=tuple(expr.shape))


@read.register(cp.perspective)
def _perspective(expr: Any) -> Node:
    return Node("perspective", (read(expr.f), read(expr.args[0])))


@read.register(cp.real)
@read.register(cp.conj)
def _real_part(expr: Any) -> Node:
    """Idle on the real expressions that hierfl treats."""
    argument = read(expr.args[0])
    return _operation(expr, (argument,)) if expr.args[0].is_complex() else argument


@read.register(Wrap)
def _wrap(expr: Any) -> Node:
    """An assertion to CVXPY, not mathematics."""
    return read(expr.args[0])


# Constraints


@read.register(cones.Inequality)
def _inequality(constraint: Any) -> Node:
    lower, upper = (read(_bare(argument)) for argument in constraint.args)
    if constraint.args[0].is_constant() and not constraint.args[1].is_constant():
        return Node("ge", (upper, lower))
    return Node("le", (lower, upper))


@read.register(cones.Equality)
def _equality(constraint: Any) -> Node:
    return Node("eq", tuple(read(_bare(argument)) for argument in constraint.args))


@read.register(cones.Zero)
def _zero(constraint: Any) -> Node:
    return Node("eq", (read(constraint.args[0]), number(0)))


@read.register(cones.NonNeg)
def _nonneg(constraint: Any) -> Node:
    return Node("ge", (read(constraint.args[0]), number(0)))


@read.register(cones.NonPos)
def _nonpos(constraint: Any) -> Node:
    return Node("le", (read(constraint.args[0]), number(0)))


@read.register(cones.PSD)
def _psd(constraint: Any) -> Node:
    """``A >> B`` is stored as A - B in the cone: its negative terms go back to the right."""
    whole = read(constraint.args[0])
    terms = whole.args if whole.head == "add" else (whole,)
    left = [term for term in terms if term.head != "neg" and not term.is_number(0)]
    right = [term.args[0] for term in terms if term.head == "neg"]
    if not left:
        return Node("psd_le", (added(*right) if right else number(0), number(0)))
    return Node("psd_ge", (added(*left), added(*right) if right else number(0)))


@read.register(cones.SOC)
def _second_order(constraint: Any) -> Node:
    bound, vector = constraint.args
    if bound.size == 1 and isinstance(bound, cp.reshape):
        bound = bound.args[0]
    columns = vector.ndim == 2
    norm = Node("norm2", (read(vector),), options=(("axis", constraint.axis),) if columns else ())
    return Node("le", (norm, read(bound)))


@read.register(cones.FiniteSet)
def _finite_set(constraint: Any) -> Node:
    return Node("member", (read(constraint.args[0]), value_node(np.asarray(constraint.vec.value))))

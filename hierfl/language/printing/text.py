"""One-line text of expressions and constraints: what the user wrote, not what CVXPY made of it.

The text is Python: with CVXPY's functions and the leaves' names in scope it evaluates to the same expression (except
for abbreviated constants, ``E`` and ``total``). Parentheses follow from a precedence for each operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hierfl.language.printing.notation import Node, read

RELATION, SUM, PRODUCT, POWER, ATOM = range(5)
"""Precedences, loosest first; an operand that binds looser than its place asks for is put in parentheses."""

_LONGEST_ARRAY = 4


class _Text(NamedTuple):
    text: str
    precedence: int = ATOM


_Writer = Callable[[Node], _Text]
_WRITERS: dict[str, _Writer] = {}


def expression_text(expr: Any) -> str:
    """A CVXPY expression or constraint as one readable line.

    Parameters
    ----------
    expr
        Any CVXPY expression or constraint; atoms that have no spelling of their own appear under their class name.

    Returns
    -------
    str
        For example ``sum_squares(x - y)`` or ``norm(y - x, "fro") <= rho``.
    """
    return write_text(read(expr))


def write_text(node: Node) -> str:
    """A node of :mod:`hierfl.language.printing.notation` as text."""
    return _write(node).text


def _write(node: Node) -> _Text:
    return _WRITERS.get(node.head, _function)(node)


def _at(node: Node, precedence: int) -> str:
    """The node's text, in parentheses if it binds looser than its place."""
    text, own = _write(node)
    return text if own >= precedence else f"({text})"


def _writes(*heads: str) -> Callable[[_Writer], _Writer]:
    def register(writer: _Writer) -> _Writer:
        _WRITERS.update(dict.fromkeys(heads, writer))
        return writer

    return register


def _call(name: str, *arguments: str) -> _Text:
    return _Text(f"{name}({', '.join(arguments)})")


def _settings(node: Node) -> tuple[str, ...]:
    return tuple(f"{name}={_setting(value)}" for name, value in node.options)


def _setting(value: Any) -> str:
    if isinstance(value, Node):
        return write_text(value)
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def _function(node: Node) -> _Text:
    return _call(node.head, *map(write_text, node.args), *_settings(node))


# Leaves


@_writes("number")
def _number(node: Node) -> _Text:
    return _Text(f"{node.value:g}")


@_writes("array")
def _array(node: Node) -> _Text:
    if len(node.shape) == 1 and node.shape[0] <= _LONGEST_ARRAY:
        return _Text(f"[{', '.join(f'{entry:g}' for entry in np.asarray(node.value))}]")
    return _Text(f"[{'x'.join(map(str, node.shape))} constant]")


@_writes("name")
def _name(node: Node) -> _Text:
    index = node.option("index")
    return _Text(f"{node.value}_{index}" if index else node.value)


# Operators


@_writes("add")
def _add(node: Node) -> _Text:
    first, *others = node.args
    signed = [f" - {_at(t.args[0], PRODUCT)}" if t.head == "neg" else f" + {_at(t, PRODUCT)}" for t in others]
    return _Text(_at(first, SUM) + "".join(signed), SUM)


@_writes("neg")
def _neg(node: Node) -> _Text:
    return _Text(f"-{_at(node.args[0], PRODUCT)}", SUM)


def _infix(symbol: str) -> _Writer:
    def write(node: Node) -> _Text:
        left, right = node.args
        return _Text(f"{_at(left, PRODUCT)} {symbol} {_at(right, POWER)}", PRODUCT)

    return write


_WRITERS |= {"scale": _infix("*"), "divide": _infix("/"), "matmul": _infix("@")}


@_writes("power")
def _power(node: Node) -> _Text:
    base, exponent = node.args
    return _Text(f"{_at(base, ATOM)}**{_at(exponent, ATOM)}", POWER)


@_writes("transpose")
def _transpose(node: Node) -> _Text:
    return _Text(f"{_at(node.args[0], ATOM)}.T")


@_writes("index")
def _index(node: Node) -> _Text:
    return _Text(f"{_at(node.args[0], ATOM)}[{index_text(node.value)}]")


def index_text(key: tuple[Any, ...]) -> str:
    """An index as it is written between brackets."""
    return ", ".join(map(_index_part, key))


def _index_part(part: Any) -> str:
    if isinstance(part, slice):
        start, stop = ("" if bound is None else str(bound) for bound in (part.start, part.stop))
        return f"{start}:{stop}" if part.step in (None, 1) else f"{start}:{stop}:{part.step}"
    if part is Ellipsis:
        return "..."
    if isinstance(part, (list, np.ndarray)) and np.size(part) > _LONGEST_ARRAY:
        return f"[{np.size(part)} indices]"
    return str(np.asarray(part).tolist()) if np.ndim(part) else str(part)


# Functions whose spelling is not head(arguments, settings)


@_writes("call")
def _user_call(node: Node) -> _Text:
    return _call(node.value, *map(write_text, node.args))


@_writes("average")
def _average(node: Node) -> _Text:
    holder = node.option("holder")
    return _Text(f"{node.value}{f'_{holder}' if holder else ''}[{write_text(node.args[0])}]")


def _norm(kind: str | None) -> _Writer:
    def write(node: Node) -> _Text:
        return _call("norm", write_text(node.args[0]), *([f'"{kind}"'] if kind else []), *_settings(node))

    return write


_WRITERS |= {"norm2": _norm(None), "norm_fro": _norm("fro"), "norm_nuc": _norm("nuc")}


@_writes("hstack", "vstack", "concatenate")
def _stack(node: Node) -> _Text:
    return _call(node.head, f"[{', '.join(map(write_text, node.args))}]", *_settings(node))


@_writes("reshape")
def _reshape(node: Node) -> _Text:
    return _call("reshape", write_text(node.args[0]), str(node.value), *_settings(node))


# Pieces of a problem that are no CVXPY expressions


@_writes("weighted_sum")
def _weighted_sum(node: Node) -> _Text:
    return _Text(f"sum_i w_i * {_at(node.args[0], PRODUCT)}", PRODUCT)


@_writes("tuple")
def _tuple(node: Node) -> _Text:
    return _call("", *map(write_text, node.args))


@_writes("apply")
def _apply(node: Node) -> _Text:
    function, *arguments = map(write_text, node.args)
    return _call(function, *arguments)


@_writes("dot")
def _dot(node: Node) -> _Text:
    left, right = node.args
    return _Text(f"{_at(left, ATOM)}^T {_at(right, ATOM)}", PRODUCT)


@_writes("inner")
def _inner(node: Node) -> _Text:
    return _Text(f"<{', '.join(map(write_text, node.args))}>")


# Constraints


def _relation(symbol: str) -> _Writer:
    def write(node: Node) -> _Text:
        left, right = node.args
        return _Text(f"{_at(left, SUM)} {symbol} {_at(right, SUM)}", RELATION)

    return write


_WRITERS |= {
    head: _relation(symbol)
    for head, symbol in {"le": "<=", "ge": ">=", "eq": "==", "psd_ge": ">>", "psd_le": "<<"}.items()
}


@_writes("member")
def _member(node: Node) -> _Text:
    return _call("FiniteSet", *map(write_text, node.args))


@_writes("property")
def _property(node: Node) -> _Text:
    return _Text(f"{_at(node.args[0], SUM)} is {node.value}", RELATION)


def domain_text(shape: tuple[int, ...]) -> str:
    """The space of that shape: ``R``, ``R^5`` or ``R^(10 x 785)``."""
    if not shape:
        return "R"
    return f"R^{shape[0]}" if len(shape) == 1 else f"R^({' x '.join(map(str, shape))})"

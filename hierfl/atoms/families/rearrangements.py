"""Atoms that move, repeat or pick entries, and assertions to CVXPY. It vectorises in Fortran order; programs enforce shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.concatenate import Concatenate
from cvxpy.atoms.affine.conj import conj
from cvxpy.atoms.affine.diag import diag_mat, diag_vec
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.imag import imag
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.real import real
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.affine.transpose import transpose
from cvxpy.atoms.affine.upper_tri import upper_tri
from cvxpy.atoms.affine.vstack import Vstack
from cvxpy.atoms.affine.wraps import (
    Wrap,
    hermitian_wrap,
    nonneg_wrap,
    nonpos_wrap,
    nsd_wrap,
    psd_wrap,
    skew_symmetric_wrap,
    symmetric_wrap,
)
from cvxpy.expressions.expression import Expression

from hierfl.atoms.families.products import transposed
from hierfl.atoms.families.sums import unchanged
from hierfl.atoms.loaded_late import jnp
from hierfl.atoms.ranges import rearranged
from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing.latex_pen import LatexPen, Template, dimensions_latex, escaped, subscript, subscriptable
from hierfl.atoms.writing.pen import ATOM, POWER, TextPen, Written, call, index_text
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Reader, Spelling

# Values


def _upper_triangle(atom: Any, value: Any) -> Any:
    rows, columns = np.triu_indices(value.shape[-1], k=1)
    return value[..., rows, columns]


def _entries(atom: Any, value: Any) -> Any:
    if isinstance(atom, index):
        return value[atom._orig_key]  # as CVXPY evaluates it; its normalised key ends negative steps at -1
    keys = atom.key if isinstance(atom.key, tuple) else (atom.key,)
    return value[tuple(np.asarray(key) if isinstance(key, list) else key for key in keys)]


def _refused_unless(agrees: Callable[[Any], bool], instead: str) -> Callable[[Any], str | None]:
    """Of an atom that CVXPY evaluates in one order of its entries and solves in another, unless these agree."""
    return lambda atom: None if agrees(atom) else f"CVXPY evaluates it in another order than it solves it; write {instead}"


def _identity(atom: Any, value: Any) -> Any:
    return value


# Rows of players


def keeps_first_axis(atom: Any) -> bool:
    """Whether a change of shape leaves row j to player j: (n,), (n, 1) and (n, k) among each other."""
    before, after = atom.args[0].shape, atom.shape
    return bool(before and after and before[0] == after[0] and len(before) == len(after))


def _is_column(atom: Any) -> bool:
    """(n,) from (n, 1) or the other way round."""
    before, after = atom.args[0].shape, atom.shape
    return bool(before and before[:1] == after[:1] and np.prod(before) == np.prod(after) == before[0])


def _takes_all_rows(atom: Any) -> bool:
    rows = atom.args[0].shape[0]
    return isinstance(atom, index) and atom.key[0] == slice(0, rows, 1) and atom.shape[:1] == (rows,)


# Derivatives


def _pull_broadcast(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    argument = atom.args[index]
    missing = atom.ndim - argument.ndim
    axes = [k for k in range(atom.ndim) if k < missing or (argument.shape[k - missing] == 1 and atom.shape[k] != 1)]
    summed = cp.sum(adjoint, axis=None if argument.ndim == 0 else tuple(axes))
    return summed if summed.shape == argument.shape else cp.reshape(summed, argument.shape, order="C")


def _pull_transpose(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    axes = atom.axes if atom.axes is not None else tuple(reversed(range(atom.ndim)))
    return cp.transpose(adjoint, tuple(int(place) for place in np.argsort(axes)))


_FORMED = 1_000_000  # entries of the matrix that puts chosen entries back


def _pull_entries(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    """Chosen entries put back in their places, by a matrix of zeros and ones where it is not too large."""
    (argument,) = atom.args
    if argument.size * atom.size > _FORMED:
        return None
    places = np.ravel(_entries(atom, np.arange(argument.size).reshape(argument.shape)))
    back = np.zeros((argument.size, atom.size))
    back[places, np.arange(atom.size)] = 1.0
    flat = adjoint if atom.ndim == 1 else cp.reshape(adjoint, (atom.size,), order="C")
    whole = back @ flat
    return whole if argument.ndim == 1 else cp.reshape(whole, argument.shape, order="C")


# Notation


def _read_reshape(reader: Reader, atom: Any) -> Phrase:
    argument = atom.args[0]
    if argument.shape == atom.shape:
        return reader(argument)
    options = (("order", atom.order),)
    phrase = Phrase("reshape", (reader(argument),), value=tuple(atom.shape), options=options, shape=tuple(atom.shape))
    return replace(phrase, head="vec", value=None) if atom.ndim == 1 and argument.ndim > 1 else phrase


def _read_transpose(reader: Reader, atom: Any) -> Phrase:
    phrase = Phrase("transpose", (reader(atom.args[0]),), shape=tuple(atom.shape))
    reverse = list(reversed(range(atom.ndim)))
    if atom.axes is None or list(atom.axes) == reverse:
        return phrase if atom.ndim > 1 else phrase.args[0]
    return replace(phrase, head="permute_dims", options=(("axes", tuple(atom.axes)),))


def _read_index(reader: Reader, atom: Any) -> Phrase:
    *_, key = atom.get_data()
    key = key if isinstance(key, tuple) else (key,)
    return Phrase("index", (reader(atom.args[0]),), value=key, shape=tuple(atom.shape))


def _read_real_part(reader: Reader, atom: Any) -> Phrase:
    """Idle on the real expressions that hierfl treats."""
    argument = reader(atom.args[0])
    return reader.operation(atom, (argument,)) if atom.args[0].is_complex() else argument


def _with_dimensions(name: str, pen: LatexPen, phrase: Phrase, shape: tuple[int, ...]) -> Written:
    return pen.applied(rf"\operatorname{{{name}}}_{{{dimensions_latex(shape)}}}", phrase.args)


def _latex_of_permutation(pen: LatexPen, phrase: Phrase) -> Written:
    axes = [str(axis) for axis in phrase.option("axes")]
    return pen.applied(r"\operatorname{permute}" + subscript(axes), phrase.args)


def _stack_row(
    kind: type, lower: Callable[..., Any], separator: str, options: dict[str, Any] | None = None, **fields: Any
) -> AtomRow:
    """The row of an atom that puts arrays side by side, written as a list of them."""
    head = kind.__name__.lower()

    def latex(pen: LatexPen, phrase: Phrase) -> Written:
        inside = pen.listed(phrase.args, separator)
        return Written(rf"\left[{inside}\right]{subscript(pen.settings(phrase))}", POWER)

    def text(pen: TextPen, phrase: Phrase) -> Written:
        return call(head, f"[{', '.join(map(pen.text, phrase.args))}]", *pen.settings(phrase))

    spelling = Spelling(head, options, latex, text)
    return AtomRow((kind,), lower=lower, layout=True, range=rearranged, spellings=(spelling,), **fields)


def _broadcast_row(kind: type) -> AtomRow:
    """The row of an atom that repeats its argument up to a shape."""
    return AtomRow(
        (kind,),
        lower=lambda atom, value: jnp.broadcast_to(value, atom.shape),
        layout=True,
        keeps_rows=keeps_first_axis,
        range=rearranged,
        derivative=_pull_broadcast,
        spellings=(
            Spelling(
                kind.__name__.lower(),
                {"shape": None},
                lambda pen, phrase: _with_dimensions("broadcast", pen, phrase, phrase.shape),
            ),
        ),
    )


_DIAG = Spelling("diag", options={"k": 0})

ROWS = (
    _broadcast_row(Promote),
    _broadcast_row(broadcast_to),
    _stack_row(
        Concatenate,
        lambda atom, *values: jnp.concatenate(values, axis=atom.axis),
        r",\, ",
        {"axis": None},
        refusal_of=_refused_unless(
            lambda atom: atom.axis is not None or all(max(part.shape, default=1) == part.size for part in atom.args),
            "cp.hstack with a cp.vec(..., order='C') of each part",
        ),
    ),
    _stack_row(
        Hstack,
        lambda atom, *values: jnp.hstack(values),
        r",\, ",
        refusal_of=_refused_unless(lambda atom: atom.ndim < 3, "cp.concatenate with axis=1"),
    ),
    _stack_row(Vstack, lambda atom, *values: jnp.vstack(values), r";\, "),
    AtomRow((diag_vec,), lower=lambda atom, value: jnp.diag(jnp.ravel(value), k=atom.k), spellings=(_DIAG,)),
    AtomRow((diag_mat,), lower=lambda atom, value: jnp.diagonal(value, offset=atom.k), spellings=(_DIAG,)),
    AtomRow((upper_tri,), lower=_upper_triangle, spellings=(Spelling("upper_tri", latex=r"\operatorname{triu}"),)),
    AtomRow(
        (transpose,),
        lower=lambda atom, value: jnp.transpose(value, atom.axes),
        layout=True,
        range=rearranged,
        derivative=_pull_transpose,
        read=_read_transpose,
        spellings=(
            Spelling(
                "transpose",
                latex=lambda pen, phrase: Written(transposed(pen, phrase.args[0]), POWER),
                text=lambda pen, phrase: Written(f"{pen.at(phrase.args[0], ATOM)}.T"),
            ),
            Spelling("permute_dims", latex=_latex_of_permutation),
        ),
    ),
    AtomRow(
        (reshape,),
        lower=lambda atom, value: jnp.reshape(value, atom.shape, order=atom.order),
        layout=True,
        keeps_rows=_is_column,
        range=rearranged,
        derivative=lambda atom, index, adjoint: cp.reshape(adjoint, atom.args[0].shape, order=atom.order),
        read=_read_reshape,
        spellings=(
            Spelling(
                "reshape",
                latex=lambda pen, phrase: _with_dimensions("reshape", pen, phrase, phrase.value),
                text=lambda pen, phrase: call("reshape", pen.text(phrase.args[0]), str(phrase.value), *pen.settings(phrase)),
            ),
        ),
    ),
    AtomRow(
        (index, special_index),
        lower=_entries,
        layout=True,
        keeps_rows=_takes_all_rows,
        range=rearranged,
        derivative=_pull_entries,
        read=_read_index,
        spellings=(
            Spelling(
                "index",
                latex=lambda pen, phrase: Written(f"{subscriptable(pen, phrase.args[0])}_{{{escaped(index_text(phrase.value))}}}"),
                text=lambda pen, phrase: Written(f"{pen.at(phrase.args[0], ATOM)}[{index_text(phrase.value)}]"),
            ),
        ),
    ),
    AtomRow(
        (
            Wrap,
            nonneg_wrap,
            nonpos_wrap,
            psd_wrap,
            nsd_wrap,
            symmetric_wrap,
            hermitian_wrap,
            skew_symmetric_wrap,
        ),
        lower=_identity,
        layout=True,
        entrywise=True,
        range=rearranged,
        derivative=unchanged,
        read=lambda reader, atom: reader(atom.args[0]),  # an assertion to CVXPY, not mathematics
    ),
    AtomRow((real,), lower=_identity, read=_read_real_part, spellings=(Spelling("real", latex=r"\operatorname{Re}"),)),
    AtomRow(
        (conj,),
        lower=_identity,
        read=_read_real_part,
        spellings=(Spelling("conj", latex=Template(r"\overline{#1}", POWER)),),
    ),
    AtomRow(
        (imag,),
        lower=lambda atom, value: jnp.zeros_like(value),
        spellings=(Spelling("imag", latex=r"\operatorname{Im}"),),
    ),
)

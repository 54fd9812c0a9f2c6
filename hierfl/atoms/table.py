"""The table of atoms: the row of every class. Each family of atoms is a file whose ``ROWS`` it collects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cvxpy.atoms.elementwise.elementwise import Elementwise

from hierfl.atoms.families import (
    eigenvalues,
    exponentials,
    extremes,
    logic,
    matrices,
    means,
    norms,
    perspectives,
    piecewise,
    powers,
    products,
    quadratics,
    rearrangements,
    sums,
)
from hierfl.atoms.row import PLAIN, AtomRow, own_row
from hierfl.atoms.writing.spelling import Spelling
from hierfl.errors import UnsupportedAtomError

FAMILIES = (
    products,
    sums,
    rearrangements,
    exponentials,
    powers,
    piecewise,
    logic,
    norms,
    extremes,
    quadratics,
    means,
    matrices,
    eigenvalues,
    perspectives,
)

_ROWS: dict[type, AtomRow] = {kind: row for family in FAMILIES for row in family.ROWS for kind in row.classes}
_SPELLINGS: dict[str, Spelling] = {
    spelling.head: spelling for family in FAMILIES for row in family.ROWS for spelling in row.spellings
}

Lowering = Callable[..., Any]


def row_of(atom: Any) -> AtomRow:
    """The row of an atom's class; all defaults for what has none, such as leaves and constraints."""
    kind = type(atom)
    return _ROWS.get(kind) or own_row(kind) or PLAIN


def holds_code(expression: Any) -> bool:
    """Whether user code is in an expression, which may have kinks that nobody tells."""
    return row_of(expression).opaque or any(map(holds_code, getattr(expression, "args", ())))


def spelling_of(head: str) -> Spelling | None:
    """How phrases of that head are written; None for a function of that name."""
    return _SPELLINGS.get(head)


def is_entrywise(atom: Any) -> bool:
    """Whether an entry of the value depends on the arguments' entries of its place alone."""
    return row_of(atom).entrywise or isinstance(atom, Elementwise)


def arguments_of(atom: Any) -> list[Any]:
    """The expressions that an atom is a function of."""
    return [*atom.args, *(getattr(atom, name) for name in row_of(atom).settings)]


def lowering_of(atom: Any, compiled: Callable[[Any], Lowering]) -> Lowering:
    """The JAX function of one atom of a tree, its settings bound; ``compiled`` makes one of an expression that the atom holds inside.

    Raises ``UnsupportedAtomError`` for an atom without a function or of a refused kind; names it and gives the reason.
    """
    row = row_of(atom)
    reason = row.refusal_of(atom) if row.refusal_of else None
    lower = row.lower
    if lower is None or reason is not None:
        reason = reason or row.refusal or "hierfl has no function of it; a class of your own has atom_row = AtomRow(lower=...), or wrap it as hf.Function(callable, *args)"
        raise UnsupportedAtomError(
            f"hierfl does not compile the atom {type(atom).__name__} in {atom.name()}: {reason}."
        )
    if row.inside is None:
        return lambda *values: lower(atom, *values)
    programs = tuple(compiled(part) for part in row.inside(atom))
    return lambda *values: lower(atom, programs, *values)


def refused_atoms() -> dict[type, str]:
    """All classes of CVXPY's atoms that are refused by name, with the reason."""
    return {kind: row.refusal for kind, row in _ROWS.items() if row.refusal is not None}

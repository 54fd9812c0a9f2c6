"""Reads CVXPY trees: what an expression or a constraint says, before anybody decides how to write it.

The row of an atom may say how it is read; any other atom becomes a function of its own name. Every head, of atoms, of constraints and
of the other pieces of a problem, has a spelling.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.axis_atom import AxisAtom
from cvxpy.expressions.leaf import Leaf

from hierfl.atoms.table import row_of, spelling_of
from hierfl.atoms.writing.phrase import Phrase, bare, value_phrase
from hierfl.atoms.writing.spelling import Spelling
from hierfl.language.printing import leaves_and_means, relations
from hierfl.language.printing.relations import CONE_HEADS, READERS

_OTHERS = {spelling.head: spelling for spelling in (*leaves_and_means.SPELLINGS, *relations.SPELLINGS)}


def spelling_named(head: str) -> Spelling | None:
    """How phrases of that head are written; None for a function of that name."""
    return spelling_of(head) or _OTHERS.get(head)


_AXIS_OPTIONS = {"axis": None, "keepdims": False}


class TreeReader:
    """Reads every part of a tree."""

    def __call__(self, part: Any) -> Phrase:
        """The phrase of a CVXPY expression or constraint."""
        if isinstance(part, cp.Constant):
            return _constant(part)
        if isinstance(part, Leaf):
            return Phrase("name", value=part.name(), options=(("id", part.id),), shape=tuple(part.shape))
        reader = READERS.get(type(part)) or row_of(part).read
        if reader is not None:
            return reader(self, part)
        return self.operation(part, tuple(self(argument) for argument in part.args))

    def operation(self, part: Any, args: tuple[Phrase, ...], head: str | None = None) -> Phrase:
        """A function of phrases, named by the part's class, with the settings that differ from their defaults."""
        head = head or _head(part)
        spelling = spelling_named(head)
        defaults = spelling.options if spelling is not None else None
        if defaults is None:
            defaults = _AXIS_OPTIONS if isinstance(part, AxisAtom) else {}
        given = ((name, getattr(part, name), default) for name, default in defaults.items())
        options = tuple(
            (name, self._setting(value)) for name, value, default in given if not _is_default(value, default)
        )
        return Phrase(head, args, options=options, shape=tuple(part.shape))

    def _setting(self, value: Any) -> Any:
        if isinstance(value, cp.Expression):
            return self(bare(value))
        return value_phrase(value) if isinstance(value, np.ndarray) else value


read = TreeReader()


def _head(part: Any) -> str:
    spellings = row_of(part).spellings
    return spellings[0].head if spellings else CONE_HEADS.get(type(part), type(part).__name__)


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, cp.Constant):
        value = value.value
    if isinstance(value, cp.Expression):  # a parameter: compared with anything it is a constraint
        return False
    return np.shape(value) == () and value == default


def _constant(constant: cp.Constant) -> Phrase:
    if constant._name:
        return Phrase("name", value=constant._name, shape=tuple(constant.shape))
    return value_phrase(constant.value)

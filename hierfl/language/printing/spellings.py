"""The spelling of every head: of atoms, of constraints, and of the other pieces of a problem."""

from __future__ import annotations

from hierfl.atoms.table import spelling_of
from hierfl.atoms.writing.spelling import Spelling
from hierfl.language.printing import leaves_and_means, relations

_OTHERS = {spelling.head: spelling for spelling in (*leaves_and_means.SPELLINGS, *relations.SPELLINGS)}


def spelling_named(head: str) -> Spelling | None:
    """How phrases of that head are written; None for a function of that name."""
    return spelling_of(head) or _OTHERS.get(head)

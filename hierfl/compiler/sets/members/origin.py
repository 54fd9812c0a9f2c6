"""Where the members of a set come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cvxpy.constraints.constraint import Constraint

from hierfl.language.printing.text import expression_text


@dataclass(frozen=True, eq=False)
class Origin:
    """The user's constraint and its hoisted copy."""

    written: Constraint
    hoisted: Constraint


def constraints_text(origins: Iterable[Origin]) -> str:
    """The constraints as the user wrote them, each once."""
    return ", ".join(dict.fromkeys(expression_text(origin.written) for origin in origins))

"""Which lower objectives have a locally Lipschitz gradient in y."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom

from hierfl.analysis.enclosure import Enclosure
from hierfl.atoms.table import row_of


def nonsmooth_atom(expressions: Any, lower_ids: set[int], enclosure: Enclosure) -> Atom | None:
    """The first atom over y whose gradient is not known to be locally Lipschitz, or that is not defined everywhere on Y(x)."""
    return _first(expressions, lower_ids, lambda atom: _is_smooth(atom, lower_ids, enclosure))


def rough_atom(expressions: Any, lower_ids: set[int], enclosure: Enclosure) -> Atom | None:
    """The first atom over y whose gradient is not known to be locally Lipschitz even inside its domain."""
    return _first(
        expressions, lower_ids, lambda atom: row_of(atom).smooth_inside or _is_smooth(atom, lower_ids, enclosure)
    )


def _first(expressions: Any, lower_ids: set[int], passes: Callable[[Atom], bool]) -> Atom | None:
    """The first atom over y that does not pass, the innermost ones first."""
    for expression in expressions:
        if not isinstance(expression, Atom) or not any(v.id in lower_ids for v in expression.variables()):
            continue
        inner = _first(expression.args, lower_ids, passes)
        if inner is not None:
            return inner
        if not passes(expression):
            return expression
    return None


def _is_smooth(atom: Atom, lower_ids: set[int], enclosure: Enclosure) -> bool:
    rule = row_of(atom).smooth
    if rule is None:
        return isinstance(atom, AffAtom)
    return rule(atom, [any(v.id in lower_ids for v in argument.variables()) for argument in atom.args], enclosure)

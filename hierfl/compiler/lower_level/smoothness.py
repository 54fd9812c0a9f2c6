"""Which lower objectives have a locally Lipschitz gradient in y."""

from __future__ import annotations

from typing import Any

from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom

from hierfl.analysis.enclosure import Enclosure
from hierfl.atoms.table import row_of


def nonsmooth_atom(expressions: Any, lower_ids: set[int], enclosure: Enclosure) -> Atom | None:
    """The first atom over y whose gradient is not known to be locally Lipschitz, or that is not defined everywhere on Y(x)."""
    for expression in expressions:
        if not isinstance(expression, Atom) or not any(v.id in lower_ids for v in expression.variables()):
            continue
        inner = nonsmooth_atom(expression.args, lower_ids, enclosure)
        if inner is not None:
            return inner
        if not _is_smooth(expression, lower_ids, enclosure):
            return expression
    return None


def _is_smooth(atom: Atom, lower_ids: set[int], enclosure: Enclosure) -> bool:
    rule = row_of(atom).smooth
    if rule is None:
        return isinstance(atom, AffAtom)
    return rule(atom, [any(v.id in lower_ids for v in argument.variables()) for argument in atom.args], enclosure)

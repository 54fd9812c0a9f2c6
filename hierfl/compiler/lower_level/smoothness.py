"""Which lower objectives have a locally Lipschitz gradient in y."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom

from hierfl.analysis.enclosure import Enclosure
from hierfl.atoms.table import row_of
from hierfl.compiler.expressions.law_kinks import crossed_atoms
from hierfl.language.expectation import SampleAverage

NO_LAWS: frozenset[int] = frozenset()


def nonsmooth_atom(
    expressions: Any, lower_ids: set[int], enclosure: Enclosure, laws: frozenset[int] = NO_LAWS
) -> Atom | None:
    """The first atom over y whose gradient is not known to be locally Lipschitz, or that is not defined everywhere on Y(x).

    What has kinks at single values of a sample is smooth on average, where the sample is among ``laws``, by id: those of one scalar
    with a density.
    """
    return _first(expressions, lower_ids, lambda atom: _is_smooth(atom, lower_ids, enclosure), laws)


def has_pieces(expression: Any, laws: frozenset[int], crossed: Container[int] = ()) -> bool:
    """Whether second derivatives may jump: an atom has branches, whose changes no law of a sample smooths."""
    if isinstance(expression, SampleAverage):
        crossed = crossed_atoms(expression.per_sample, laws)
    make = row_of(expression).switches
    own = (
        make is not None
        and id(expression) not in crossed
        and any(not switch.is_constant() for switch in make(expression))
    )
    return own or any(has_pieces(argument, laws, crossed) for argument in getattr(expression, "args", ()))


def _first(expressions: Any, lower_ids: set[int], passes: Callable[[Atom], bool], laws: frozenset[int]) -> Atom | None:
    """The first atom over y that does not pass, the innermost ones first."""
    for expression in expressions:
        if not isinstance(expression, Atom) or not any(v.id in lower_ids for v in expression.variables()):
            continue
        if isinstance(expression, SampleAverage):
            inner = _first(expression.args, lower_ids, _on_average(expression, passes, laws), laws)
            if inner is not None:
                return inner
            continue
        inner = _first(expression.args, lower_ids, passes, laws)
        if inner is not None:
            return inner
        if not passes(expression):
            return expression
    return None


def _on_average(average: SampleAverage, passes: Callable[[Atom], bool], laws: frozenset[int]) -> Callable[[Atom], bool]:
    """What passes under a mean: over a law of one scalar, what the sample carries across its kinks as well."""
    crossed = crossed_atoms(average.per_sample, laws)
    return (lambda atom: passes(atom) or id(atom) in crossed) if crossed else passes


def _is_smooth(atom: Atom, lower_ids: set[int], enclosure: Enclosure) -> bool:
    rule = row_of(atom).smooth
    if rule is None:
        return isinstance(atom, AffAtom)
    return rule(atom, [any(v.id in lower_ids for v in argument.variables()) for argument in atom.args], enclosure)

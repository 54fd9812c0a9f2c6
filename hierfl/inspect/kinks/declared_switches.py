"""Switches: expressions whose sign says on which smooth piece of f a point lies.

A nonsmooth atom (abs, maximum, norms, ...) has one for each place where it changes branch, a constraint of Y(x) has its
slack. f is smooth where no switch changes; where one does it may have a kink. That is how kinks are found and named.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import cvxpy as cp
from cvxpy.constraints import PSD, SOC, Equality, ExpCone, Inequality, NonNeg, NonPos, PowCone3D, PowConeND, Zero

from hierfl.analysis.hoist import instantiate
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.atoms.table import row_of
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.expressions.law_kinks import crossed_atoms
from hierfl.language.expectation import SampleAverage
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter

_OPAQUE_CONES = (PSD, ExpCone, PowCone3D, PowConeND)


class Switch(NamedTuple):
    """``expression`` changes sign where ``source``, an atom or a constraint of Y(x), changes branch.

    ``smoothed`` is one that a sample carries across zero, whose law makes its mean smooth but where the law's density jumps.
    """

    source: str
    expression: Any
    is_slack: bool = False
    smoothed: bool = False


def switches_of(
    expression: Any, laws: frozenset[int] = frozenset(), crossed: Container[int] | None = None
) -> Iterator[tuple[Switch, bool]]:
    """(switch, whether it stands under a mean over samples) for every nonsmooth atom of a tree; ``laws`` make means smooth, by id."""
    inside = crossed_atoms(expression.per_sample, laws) if isinstance(expression, SampleAverage) else crossed
    for sign_changing in _own_switches(expression):
        smoothed = crossed is not None and id(expression) in crossed
        yield Switch(expression_text(expression), sign_changing, False, smoothed), crossed is not None
    for argument in getattr(expression, "args", ()):
        yield from switches_of(argument, laws, inside)


def _own_switches(atom: Any) -> list[Any]:
    make = row_of(atom).switches
    return [] if make is None else [e for e in make(atom) if not e.is_constant()]


def owned_constraints(compiled: CompiledProblem) -> Iterator[tuple[Any, str]]:
    """The constraints of Y(x), each with whose it is: a federation's Y(x) has every client's own."""
    level, federation = compiled.declaration.lower_level, compiled.declaration.federation
    assert level is not None
    for constraint in [*level.constraints, *attribute_constraints(level.variables)]:
        private = any(isinstance(p, ClientParameter) for p in constraint.parameters())
        if not private or level.scope != "federation" or federation is None:
            yield constraint, ""
            continue
        for index, client in enumerate(federation.clients):
            yield (
                instantiate([constraint], client.parameters)[0],
                f"{expression_text(constraint)} of {client.called(index)}",
            )


def atoms_of(compiled: CompiledProblem) -> Iterator[Any]:
    """Every expression within the declared terms and the lower level."""
    problem, level = compiled.declaration, compiled.declaration.lower_level
    trees: list[Any] = [term for term in (problem.objective.server, problem.objective.clients) if term is not None]
    trees += [*level.expressions, *level.constraints, *attribute_constraints(level.variables)] if level else []
    for tree in trees:
        yield from nodes_of(tree)


def nodes_of(expression: Any) -> Iterator[Any]:
    """The expression and all below it."""
    yield expression
    for argument in getattr(expression, "args", ()):
        yield from nodes_of(argument)


def constraint_switches(constraint: Any, name: str = "") -> Iterator[Switch]:
    """The slack of a constraint, and the switches of its own atoms."""
    text = name or expression_text(constraint)
    if isinstance(constraint, Inequality):
        yield Switch(text, constraint.args[1] - constraint.args[0], True)
    elif isinstance(constraint, (NonNeg, NonPos)):
        yield Switch(text, constraint.args[0] if isinstance(constraint, NonNeg) else -constraint.args[0], True)
    elif isinstance(constraint, SOC):
        length = cp.norm(constraint.args[1], 2, axis=constraint.axis)
        yield Switch(text, constraint.args[0] - length, True)
        yield Switch(text, length)
    elif isinstance(constraint, PSD):
        yield Switch(text, cp.lambda_min(constraint.args[0]), True)
    elif not isinstance(constraint, (Equality, Zero)):
        return
    for argument in constraint.args:
        yield from (switch for switch, _ in switches_of(argument))


def is_opaque(part: Any) -> bool:
    """Whether an atom or a constraint has pieces whose switches cannot be told."""
    return row_of(part).opaque or isinstance(part, _OPAQUE_CONES)

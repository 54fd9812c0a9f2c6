"""Derives the formulas of a problem: its declaration in SymPy, the lower level solved in closed form where it is separable.

The upper objective is written with the answer in place of y. Nothing is returned that does not agree with
``problem.implicit`` at random points of X.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import sympy

from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.atoms.formulas import Expr, Scalars, as_array, exact, exact_array
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import DeclarationError, SymbolicError
from hierfl.inspect.symbolic.agreement import CHECKS, agree, verify
from hierfl.inspect.symbolic.answer_formula import AnswerFormula, answer_formula, inequalities_of
from hierfl.inspect.symbolic.branches import shortest
from hierfl.inspect.symbolic.region import BRANCHING, Region
from hierfl.inspect.symbolic.symbolic_kinks import find_kinks, pieces
from hierfl.inspect.symbolic.translation import translate
from hierfl.inspect.symbolic.view import DecisionSymbols, SymbolicView, symbols_of
from hierfl.jaxtools.precision import double_precision
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client

SIZE_LIMIT = 200  # scalars of x and of all owners' y
JOINED_LIMIT = 20  # scalars of x in one term of f: what is not separable grows fast
_Environment = dict[int, Scalars]


@double_precision
def symbolic(compiled: CompiledProblem) -> SymbolicView:
    """The formulas; errors as for ``ImplicitFunction.symbolic``."""
    declaration = compiled.declaration
    _require_applicable(declaration)
    symbols = DecisionSymbols.of(compiled)
    region = _region(declaration, symbols)
    environments = _environments(declaration, symbols)
    answers = _answers(declaration, environments, region)
    whole = _upper_value(declaration, environments, answers)
    _require_separable(whole)
    region = replace(region, conditions=tuple(c for answer in answers for c in answer.conditions))
    value = _readable(region.simplified(whole), region)
    kinks, unknown = find_kinks(value, region)
    view = SymbolicView(
        x={v: _public(symbols.arrays[v.id]) for v in symbols.variables},
        response=_response(declaration, answers),
        value=value,
        kinks=kinks,
        unknown=unknown,
        domain=region.domain,
        verified=CHECKS,
        decision=symbols,
        region=region,
    )
    verify(compiled, view)
    return view


def _require_applicable(declaration: Declaration) -> None:
    level, roles = declaration.lower_level, declaration.roles
    tables = [*roles.client_tables, *roles.server_tables]
    if tables:
        raise SymbolicError(
            f"the problem is over data (sample {tables[0][0].name()!r}): f is a mean over rows, not a formula of x. A declaration "
            f"with cp.Parameter or hf.ClientParameter in place of the samples has one."
        )
    if level is not None and level.scope == "sample":
        raise SymbolicError(
            "the lower level has a y for each sample: a formula needs one of the federation or the clients."
        )
    owners = _owners(declaration)
    size = sum(v.size for v in roles.upper) + owners * sum(v.size for v in roles.lower)
    if size > SIZE_LIMIT:
        raise SymbolicError(
            f"x and y have {size} scalars; formulas of more than {SIZE_LIMIT} are not derived. Declare a smaller instance."
        )


def _require_separable(value: Expr) -> None:
    """No term of f joins many scalars of x."""
    joined = max((len(term.free_symbols) for term in sympy.Add.make_args(value)), default=0)
    if joined > JOINED_LIMIT:
        raise SymbolicError(
            f"a term of f joins {joined} scalars of x: beyond {JOINED_LIMIT}, formulas are derived only for sums of terms in few "
            f"scalars each. Declare a smaller instance."
        )


def _owners(declaration: Declaration) -> int:
    """How many y there are."""
    level, federation = declaration.lower_level, declaration.federation
    return federation.num_clients if level is not None and level.scope == "client" and federation else 1


def _region(declaration: Declaration, symbols: DecisionSymbols) -> Region:
    bounds = {}
    for variable in symbols.variables:
        known = declaration.known_bounds[variable.id]
        for symbol, low, high in zip(symbols.arrays[variable.id].flat, known.lo.flat, known.hi.flat):
            bounds[symbol] = (exact(low), exact(high))
    return Region(bounds)


def _environments(declaration: Declaration, symbols: DecisionSymbols) -> list[_Environment]:
    """What each client knows besides y: the symbols of x and the values of parameters."""
    public = dict(symbols.arrays)
    for parameter in declaration.roles.parameters:
        if parameter.value is None:
            raise DeclarationError(f"parameter {parameter.name()!r} has no value: set {parameter.name()}.value first.")
        public[parameter.id] = exact_array(parameter.value)
    clients = declaration.federation.clients if declaration.federation else (Client(),)
    return [{**public, **{p.id: exact_array(v) for p, v in client.parameters.items()}} for client in clients]


# The lower level


def _answers(declaration: Declaration, environments: list[_Environment], region: Region) -> list[AnswerFormula]:
    """y(x) of each owner; none without a lower level."""
    level = declaration.lower_level
    if level is None:
        return []
    weights = [exact(weight) for weight in declaration.client_weights]
    parties = list(zip(weights, environments))
    groups = [[party] for party in parties] if level.scope == "client" else [parties]
    return [_answer(level, group, region) for group in groups]


def _answer(level: Any, parties: list[tuple[Expr, _Environment]], region: Region) -> AnswerFormula:
    """y(x) of one owner: the weighted mean of its parties' objectives, over all their constraints."""
    unknowns = {variable.id: symbols_of(variable) for variable in level.variables}
    flat = [symbol for variable in level.variables for symbol in unknowns[variable.id].flat]
    terms: list[list[Expr]] = []
    inequalities: dict[Expr, None] = {}
    for weight, environment in parties:
        known = {**environment, **unknowns}
        values = [translate(expression, known) for expression in level.expressions]
        terms.append([weight * exact(level.sign) * entry for value in values for entry in value.flat])
        for constraint in [*level.constraints, *attribute_constraints(level.variables)]:
            inequalities |= dict.fromkeys(inequalities_of(constraint, lambda e, known=known: translate(e, known)))
    sums = [sympy.Add(*parts) for parts in zip(*terms)]
    operator = sums if level.kind == "equilibrium" else [sympy.diff(sympy.expand(sums[0]), y) for y in flat]
    return answer_formula(operator, list(inequalities), flat, region)


# The upper level


def _upper_value(declaration: Declaration, environments: list[_Environment], answers: list[AnswerFormula]) -> Expr:
    """f(x), the answers in place of y."""
    objective, weights = declaration.objective, declaration.client_weights
    shared = [_assigned(declaration, answer) for answer in answers]
    total = sympy.S.Zero
    if objective.server is not None:
        own = shared[0] if len(shared) == 1 else {}
        total += translate(objective.server, {**environments[0], **own}).ravel()[0]
    if objective.clients is not None:
        for place, (weight, environment) in enumerate(zip(weights, environments)):
            own = shared[min(place, len(shared) - 1)] if shared else {}
            total += exact(weight) * translate(objective.clients, {**environment, **own}).ravel()[0]
    return total


def _assigned(declaration: Declaration, answer: AnswerFormula) -> _Environment:
    """The entries of one owner's answer by variable."""
    assigned, start = {}, 0
    for variable in declaration.roles.lower:
        assigned[variable.id] = as_array(answer.entries[start : start + variable.size], tuple(variable.shape))
        start += variable.size
    return assigned


def _response(declaration: Declaration, answers: list[AnswerFormula]) -> dict[cp.Variable, Expr]:
    owners = [_assigned(declaration, answer) for answer in answers]
    if not owners:
        return {}
    each = len(owners) > 1
    return {
        variable: _public(np.stack([own[variable.id] for own in owners]) if each else owners[0][variable.id])
        for variable in declaration.roles.lower
    }


def _public(array: Scalars) -> Expr:
    """A scalar as an expression, else a SymPy array."""
    return sympy.Array(array.ravel().tolist(), array.shape) if array.shape else array[()]


def _readable(value: Expr, region: Region) -> Expr:
    """Terms in one and the same symbol as one Piecewise over its intervals; without branches the shortest form.

    The value itself is right; a shorter one takes its place only where both agree at points of the region.
    """
    if not value.has(*BRANCHING):
        return shortest(value)
    groups: dict[frozenset[Expr], Expr] = {}
    for term in sympy.Add.make_args(value):
        key = frozenset(term.free_symbols)
        groups[key] = groups.get(key, sympy.S.Zero) + term
    return sympy.Add(*(_group(group, symbols, region) for symbols, group in groups.items()))


def _group(group: Expr, symbols: frozenset[Expr], region: Region) -> Expr:
    if len(symbols) == 1 and group.has(*BRANCHING):
        short = pieces(group, next(iter(symbols)), region)
    else:
        short = sympy.piecewise_fold(group) if group.has(sympy.Piecewise) else group
    return short if short == group or agree(short, group, region) else group

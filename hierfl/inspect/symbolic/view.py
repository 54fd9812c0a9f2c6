"""``problem.implicit.symbolic()``: y(x) and f(x) as formulas, with their kinks and one-sided derivatives exact.

The declaration is translated to SymPy, the lower level solved in closed form where it is separable, and the upper
objective written with the answer in place of y. Nothing is returned that does not agree with ``problem.implicit`` at
random points of X.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import sympy

from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.public_response import public_response
from hierfl.compiler.starting_points import on_upper_set
from hierfl.errors import DeclarationError, DivergedError, HierflError, SettingError, SymbolicError
from hierfl.inspect.symbolic.atoms import Expr, Scalars, as_array, exact, exact_array, translate
from hierfl.inspect.symbolic.closed_form import ClosedForm, closed_form, inequalities_of
from hierfl.inspect.symbolic.formula_text import formula_text
from hierfl.inspect.symbolic.region import BRANCHING, Region
from hierfl.inspect.symbolic.symbolic_kinks import (
    SymbolicKink,
    find_kinks,
    one_sided_derivatives,
    pieces,
    random_rational,
    shortest,
)
from hierfl.jaxtools.precision import double_precision
from hierfl.language.federation.client import Client
from hierfl.language.printing.latex import expression_latex
from hierfl.language.printing.text import expression_text

SIZE_LIMIT = 200  # scalars of x and of all owners' y
JOINED_LIMIT = 20  # scalars of x in one term of f: what is not separable grows fast
_CHECKS = 16  # points of X at which the formulas are compared with the numbers
_TRIES = 200
_TOLERANCE = 1e-9
_Environment = dict[int, Scalars]


@dataclass(frozen=True, eq=False)
class SymbolicView:
    """The implicit function as SymPy formulas, valid on X.

    Attributes
    ----------
    x
        ``{upper variable: its symbol, or a sympy.Array of them}``.
    response
        ``{lower variable: y(x)}`` in the shapes of ``Result.y``, a scalar as an expression, else a ``sympy.Array``.
    value
        f(x), in the declared sign.
    kinks
        The sets inside the known bounds of x on which the gradient of f jumps.
    unknown
        Sets of further ones, if any: none was found at random points of them, and they have too many pieces to look at each.
    domain
        Where Y(x) is not empty, beyond what the bounds of x imply: a SymPy Boolean.
    verified
        Number of random points of X at which y(x) and f(x) agree with ``problem.implicit`` to 1e-9.
    """

    x: Mapping[cp.Variable, Expr]
    response: Mapping[cp.Variable, Expr]
    value: Expr
    kinks: tuple[SymbolicKink, ...]
    unknown: tuple[Expr, ...]
    domain: Expr
    verified: int
    _symbols: _Symbols
    _region: Region

    def one_sided(self, x: Any, direction: Any) -> tuple[Expr, Expr]:
        """The exact derivatives (left, right) of f along a line: of f(x + t direction) for t below and above 0.

        Parameters
        ----------
        x, direction
            An array for one upper variable, else ``{variable: array}``; floats count as the fractions that they round.

        Raises
        ------
        DataError
            For a wrong shape.
        SettingError
            If x is outside the bounds within which the formula holds.
        """
        point, step = self._symbols.point(x, "x"), self._symbols.point(direction, "direction")
        if not self._region.contains(point):
            raise SettingError(
                f"x={x} is outside the declared bounds or Y(x) is empty there: the formula need not hold."
            )
        return one_sided_derivatives(self.value, point, step)

    def latex(self) -> str:
        """y(x), f(x) and the kinks as LaTeX (an ``aligned`` display)."""
        names = self._symbols.latex
        arguments = ", ".join(expression_latex(variable) for variable in self.x)
        rows = [
            rf"{expression_latex(y)}\left({arguments}\right) &= {sympy.latex(formula, symbol_names=names)}"
            for y, formula in self.response.items()
        ]
        rows.append(rf"f\left({arguments}\right) &= {sympy.latex(self.value, symbol_names=names)}")
        if self.domain != sympy.true:
            rows.append(rf"\text{{where }} & {sympy.latex(self.domain, symbol_names=names)}")
        rows += [rf"\text{{kink: }} & {_kink_latex(kink, names)}" for kink in self.kinks]
        return "\\begin{aligned}\n" + " \\\\\n".join(rows) + "\n\\end{aligned}"

    def _repr_latex_(self) -> str:
        return f"$${self.latex()}$$"

    def __str__(self) -> str:
        arguments = ", ".join(variable.name() for variable in self.x)
        rows = [f"{y.name()}({arguments}) = {formula_text(formula)}" for y, formula in self.response.items()]
        rows.append(f"f({arguments}) = {formula_text(self.value)}")
        rows += [f"kink at {kink}" for kink in self.kinks]
        rows += [f"not known: kinks on a small part of {e.lhs} = {e.rhs}, none at random points" for e in self.unknown]
        rows += [] if self.kinks or self.unknown else ["no kinks"]
        rows += [f"where {self.domain}"] if self.domain != sympy.true else []
        return "\n".join([*rows, f"agrees with problem.implicit at {self.verified} random points"])


@dataclass(frozen=True)
class _Symbols:
    """The scalars of x: one real symbol per entry, named as CVXPY indexes it."""

    variables: tuple[cp.Variable, ...]
    arrays: dict[int, Scalars]
    compiled: CompiledProblem

    @classmethod
    def of(cls, compiled: CompiledProblem) -> _Symbols:
        return cls(
            compiled.declaration.upper_variables,
            {v.id: _symbols(v) for v in compiled.declaration.upper_variables},
            compiled,
        )

    @property
    def flat(self) -> list[Expr]:
        return [symbol for variable in self.variables for symbol in self.arrays[variable.id].flat]

    @property
    def latex(self) -> dict[Expr, str]:
        return {
            symbol: expression_latex(variable[place] if variable.ndim else variable)
            for variable in self.variables
            for place, symbol in np.ndenumerate(self.arrays[variable.id])
        }

    def point(self, value: Any, what: str) -> dict[Expr, Expr]:
        flat = self.compiled.upper.flatten(value, what)
        return dict(zip(self.flat, map(exact, flat)))


def _symbols(variable: cp.Variable) -> Scalars:
    names = [expression_text(variable[place] if variable.ndim else variable) for place in np.ndindex(*variable.shape)]
    return as_array([sympy.Symbol(name, real=True) for name in names], tuple(variable.shape))


@double_precision
def symbolic(compiled: CompiledProblem) -> SymbolicView:
    """The formulas; errors as for ``ImplicitFunction.symbolic``."""
    _require_applicable(compiled)
    symbols = _Symbols.of(compiled)
    region = _region(compiled, symbols)
    environments = _environments(compiled, symbols)
    answers = _answers(compiled, environments, region)
    whole = _upper_value(compiled, environments, answers)
    _require_separable(whole)
    region = replace(region, conditions=tuple(c for answer in answers for c in answer.conditions))
    value = _readable(region.simplified(whole), region)
    kinks, unknown = find_kinks(value, region)
    view = SymbolicView(
        x={v: _public(symbols.arrays[v.id]) for v in symbols.variables},
        response=_response(compiled, answers),
        value=value,
        kinks=kinks,
        unknown=unknown,
        domain=region.domain,
        verified=_CHECKS,
        _symbols=symbols,
        _region=region,
    )
    _verify(compiled, view)
    return view


def _require_applicable(compiled: CompiledProblem) -> None:
    level, roles = compiled.declaration.lower_level, compiled.declaration.roles
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
    owners = _owners(compiled)
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


def _owners(compiled: CompiledProblem) -> int:
    """How many y there are."""
    level, federation = compiled.declaration.lower_level, compiled.declaration.federation
    return federation.num_clients if level is not None and level.scope == "client" and federation else 1


def _region(compiled: CompiledProblem, symbols: _Symbols) -> Region:
    bounds = {}
    for variable in symbols.variables:
        known = compiled.declaration.known_bounds[variable.id]
        for symbol, low, high in zip(symbols.arrays[variable.id].flat, known.lo.flat, known.hi.flat):
            bounds[symbol] = (exact(low), exact(high))
    return Region(bounds)


def _environments(compiled: CompiledProblem, symbols: _Symbols) -> list[_Environment]:
    """What each client knows besides y: the symbols of x and the values of parameters."""
    public = dict(symbols.arrays)
    for parameter in compiled.declaration.roles.parameters:
        if parameter.value is None:
            raise DeclarationError(f"parameter {parameter.name()!r} has no value: set {parameter.name()}.value first.")
        public[parameter.id] = exact_array(parameter.value)
    clients = compiled.declaration.federation.clients if compiled.declaration.federation else (Client(),)
    return [{**public, **{p.id: exact_array(v) for p, v in client.parameters.items()}} for client in clients]


# The lower level


def _answers(compiled: CompiledProblem, environments: list[_Environment], region: Region) -> list[ClosedForm]:
    """y(x) of each owner; none without a lower level."""
    level = compiled.declaration.lower_level
    if level is None:
        return []
    weights = [exact(weight) for weight in compiled.declaration.client_weights]
    parties = list(zip(weights, environments))
    groups = [[party] for party in parties] if level.scope == "client" else [parties]
    return [_answer(level, group, region) for group in groups]


def _answer(level: Any, parties: list[tuple[Expr, _Environment]], region: Region) -> ClosedForm:
    """y(x) of one owner: the weighted mean of its parties' objectives, over all their constraints."""
    unknowns = {variable.id: _symbols(variable) for variable in level.variables}
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
    return closed_form(operator, list(inequalities), flat, region)


# The upper level


def _upper_value(compiled: CompiledProblem, environments: list[_Environment], answers: list[ClosedForm]) -> Expr:
    """f(x), the answers in place of y."""
    objective, weights = compiled.declaration.objective, compiled.declaration.client_weights
    shared = [_assigned(compiled, answer) for answer in answers]
    total = sympy.S.Zero
    if objective.server is not None:
        own = shared[0] if len(shared) == 1 else {}
        total += translate(objective.server, {**environments[0], **own}).ravel()[0]
    if objective.clients is not None:
        for place, (weight, environment) in enumerate(zip(weights, environments)):
            own = shared[min(place, len(shared) - 1)] if shared else {}
            total += exact(weight) * translate(objective.clients, {**environment, **own}).ravel()[0]
    return total


def _assigned(compiled: CompiledProblem, answer: ClosedForm) -> _Environment:
    """The entries of one owner's answer by variable."""
    assigned, start = {}, 0
    for variable in compiled.declaration.roles.lower:
        assigned[variable.id] = as_array(answer.entries[start : start + variable.size], tuple(variable.shape))
        start += variable.size
    return assigned


def _response(compiled: CompiledProblem, answers: list[ClosedForm]) -> dict[cp.Variable, Expr]:
    owners = [_assigned(compiled, answer) for answer in answers]
    if not owners:
        return {}
    each = len(owners) > 1
    return {
        variable: _public(np.stack([own[variable.id] for own in owners]) if each else owners[0][variable.id])
        for variable in compiled.declaration.roles.lower
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
    return short if short == group or _agree(short, group, region) else group


def _agree(one: Expr, other: Expr, region: Region) -> bool:
    """Whether two formulas have the same value at random points that the region's conditions do not rule out."""
    rng = np.random.default_rng(0)
    for _ in range(_CHECKS):
        point = {s: random_rational(rng, region.limits(s)) for s in sorted(other.free_symbols, key=str)}
        expected = complex(sympy.N(other.xreplace(point), 20))
        if region.domain.xreplace(point) == sympy.false or not np.isfinite(expected):
            continue
        if not abs(complex(sympy.N(one.xreplace(point), 20)) - expected) <= _TOLERANCE * max(1.0, abs(expected)):
            return False
    return True


# Agreement with the numbers


def _verify(compiled: CompiledProblem, view: SymbolicView) -> None:
    """Compare with the implicit function at random points of X.

    Raises
    ------
    HierflError
        If they disagree: a defect of hierfl.
    """
    upper, checked = compiled.upper, 0
    for point in _points(compiled, view):
        x = upper.unflatten(point)
        try:
            evaluation = compiled.exact.at(point)
        except DivergedError:  # a point of X at which the objective is not defined
            continue
        place = dict(zip(view._symbols.flat, map(_digits, point)))
        solution, pairs = evaluation.solution, [(view.value, compiled.sign * float(evaluation.value))]
        if view.response and solution is not None:
            pairs += _pairs(view.response, public_response(compiled, solution.y))
        for formula, number in pairs:
            found = complex(sympy.N(formula.xreplace(place), 20))
            if not abs(found - number) <= _TOLERANCE * max(1.0, abs(number)):
                raise HierflError(
                    f"internal error: at x = {x} the formula {formula} is {found}, problem.implicit finds {number}. "
                    f"Please report it."
                )
        checked += 1
        if checked == view.verified:
            return
    raise SymbolicError(f"f has a value at only {checked} of {_TRIES} random points of X: too few to check a formula.")


def _digits(value: float) -> Expr:
    """The float's own value, all digits."""
    return sympy.Rational(float(value))


def _points(compiled: CompiledProblem, view: SymbolicView) -> Iterator[np.ndarray]:
    """Random points of X at which Y(x) is not empty."""
    rng = np.random.default_rng(0)
    limits = [view._region.limits(symbol) for symbol in view._symbols.flat]
    finite = [low.is_finite and high.is_finite for low, high in limits]
    low, high = (np.array([float(e[k]) if f else 3.0 * (2 * k - 1) for e, f in zip(limits, finite)]) for k in (0, 1))
    for point in on_upper_set(compiled, low + (high - low) * rng.random((_TRIES, low.size))):
        place = dict(zip(view._symbols.flat, map(_digits, point)))
        if bool(view.domain.xreplace(place)):
            yield point


def _pairs(response: Mapping[cp.Variable, Expr], numbers: Any) -> list[tuple[Expr, float]]:
    by_variable = numbers if isinstance(numbers, Mapping) else {next(iter(response)): numbers}
    return [
        (formula, float(number))
        for variable, formulas in response.items()
        for formula, number in zip(_entries(formulas), np.ravel(by_variable[variable]))
    ]


def _entries(formulas: Expr) -> list[Expr]:
    return list(sympy.flatten(formulas)) if isinstance(formulas, sympy.NDimArray) else [formulas]


def _kink_latex(kink: SymbolicKink, names: Mapping[Expr, str]) -> str:
    where = sympy.latex(kink.condition, symbol_names=names)
    if kink.coordinate is None:
        return str(where)
    left, right = (sympy.latex(slope, symbol_names=names) for slope in (kink.left_slope, kink.right_slope))
    return rf"{where}, \text{{ slopes }} {left} \text{{ and }} {right}"

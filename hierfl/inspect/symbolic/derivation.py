"""``problem.implicit.symbolic()``: y(x) and f(x) as formulas, with their kinks and one-sided derivatives exact, and how they are derived.

The declaration is written in SymPy, and the lower level solved in closed form where it is separable; the upper objective is written with the
answer in place of y. Nothing is returned that does not agree with ``problem.implicit`` at random points of X, and with the formula that it
replaces.

CVXPY expressions become arrays of SymPy scalars. Affine atoms need no formula: each is evaluated by CVXPY itself, at 0 and at the
unit vectors, which gives its coefficients. The formulas of products and of nonlinear atoms are in their rows. Numbers become
fractions: 0.1 is 1/10, and what a float can only round (1/3) is the fraction meant, if its denominator is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import sympy
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.expressions.leaf import Leaf

from hierfl.analysis.hoist import memoised
from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.atoms.formulas import Expr, Scalars, as_array, exact, exact_array
from hierfl.atoms.ranges import affine_map
from hierfl.atoms.row import NoAnswerError
from hierfl.atoms.table import row_of
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.layout import Layout
from hierfl.compiler.oracles import public_response
from hierfl.compiler.starting_points import known_box, on_upper_set
from hierfl.errors import DeclarationError, DivergedError, HierflError, SettingError, SymbolicError
from hierfl.inspect.symbolic.answer_formula import AnswerFormula, answer_formula, inequalities_of
from hierfl.inspect.symbolic.branches import (
    BRANCHING,
    Region,
    formula_text,
    one_sided_derivatives,
    random_rational,
    shortest,
)
from hierfl.inspect.symbolic.symbolic_kinks import SymbolicKink, find_kinks, pieces
from hierfl.jaxtools.precision import double_precision
from hierfl.language.declaration import Declaration
from hierfl.language.expectation import SampleAverage
from hierfl.language.federation.client import Client
from hierfl.language.levels import Followers
from hierfl.language.printing.text import expression_latex, expression_text


@dataclass(frozen=True, eq=False, repr=False)
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
    decision, region
        The scalars of x as symbols, and what is known of them.
    """

    x: Mapping[cp.Variable, Expr]
    response: Mapping[cp.Variable, Expr]
    value: Expr
    kinks: tuple[SymbolicKink, ...]
    unknown: tuple[Expr, ...]
    domain: Expr
    verified: int
    decision: DecisionSymbols
    region: Region

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
        point, step = self.decision.point(x, "x"), self.decision.point(direction, "direction")
        if not self.region.contains(point):
            raise SettingError(f"x={x} is outside the declared bounds or Y(x) is empty there: the formula need not hold.")
        return one_sided_derivatives(self.value, point, step)

    def latex(self) -> str:
        """y(x), f(x) and the kinks as LaTeX (an ``aligned`` display)."""
        written = partial(sympy.latex, symbol_names=self.decision.latex)
        arguments = ", ".join(map(expression_latex, self.x))
        called = [(expression_latex(y), formula) for y, formula in self.response.items()]
        rows = [rf"{name}\left({arguments}\right) &= {written(formula)}" for name, formula in (*called, ("f", self.value))]
        if self.domain != sympy.true:
            rows.append(rf"\text{{where }} & {written(self.domain)}")
        for kink in self.kinks:
            slopes = rf", \text{{ slopes }} {written(kink.left_slope)} \text{{ and }} {written(kink.right_slope)}"
            rows.append(rf"\text{{kink: }} & {written(kink.condition)}{'' if kink.coordinate is None else slopes}")
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

    __repr__ = __str__


@dataclass(frozen=True)
class DecisionSymbols:
    """The scalars of a decision: one real symbol per entry, named as CVXPY indexes it."""

    layout: Layout

    @property
    def flat(self) -> list[Expr]:
        return [sympy.Symbol(name, real=True) for name in self.layout.entries]

    @property
    def arrays(self) -> dict[int, Scalars]:
        return self.layout.split(as_array(self.flat, (self.layout.size,)))

    @property
    def latex(self) -> dict[Expr, str]:
        entries = (v[place] if v.ndim else v for v in self.layout.variables for place in np.ndindex(*v.shape))
        return dict(zip(self.flat, map(expression_latex, entries)))

    def point(self, value: Any, what: str) -> dict[Expr, Expr]:
        return dict(zip(self.flat, map(exact, self.layout.flatten(value, what))))


CHECKS = 16  # points of X at which the formulas are compared with the numbers
_TRIES = 200
_TOLERANCE = 1e-9


def _agree(one: Expr, other: Expr, region: Region) -> bool:
    """Whether two formulas have the same value at random points that the region's conditions do not rule out."""
    rng = np.random.default_rng(0)
    for _ in range(CHECKS):
        point = {s: random_rational(rng, region.limits(s)) for s in sorted(other.free_symbols, key=str)}
        expected = complex(sympy.N(other.xreplace(point), 20))
        counts = region.domain.xreplace(point) != sympy.false and np.isfinite(expected)
        if counts and not abs(complex(sympy.N(one.xreplace(point), 20)) - expected) <= _TOLERANCE * max(1.0, abs(expected)):
            return False
    return True


def _verify(compiled: CompiledProblem, view: SymbolicView) -> None:
    """Compare with the implicit function at random points of X; raises ``HierflError`` if they disagree: a defect of hierfl."""
    upper, checked = compiled.upper, 0
    for point in _points(compiled, view):
        x = upper.unflatten(point)
        try:
            evaluation = compiled.exact.at(point)
        except DivergedError:  # a point of X at which the objective is not defined
            continue
        place = _all_digits(view, point)
        solution, pairs = evaluation.solution, [(view.value, compiled.sign * float(evaluation.value))]
        if view.response and solution is not None:
            numbers = public_response(compiled, solution.y)
            for variable, formulas in view.response.items():
                entries = sympy.flatten(formulas) if isinstance(formulas, sympy.NDimArray) else [formulas]
                own = numbers[variable] if isinstance(numbers, Mapping) else numbers
                pairs += zip(entries, map(float, np.ravel(own)))
        for formula, number in pairs:
            found = complex(sympy.N(formula.xreplace(place), 20))
            if not abs(found - number) <= _TOLERANCE * max(1.0, abs(number)):
                raise HierflError(f"internal error: at x = {x} the formula {formula} is {found}, problem.implicit finds {number}. Please report it.")
        checked += 1
        if checked == view.verified:
            return
    raise SymbolicError(f"f has a value at only {checked} of {_TRIES} random points of X: too few to check a formula.")


def _all_digits(view: SymbolicView, point: np.ndarray) -> dict[Expr, Expr]:
    """The scalars of x as the floats' own values."""
    return {symbol: sympy.Rational(float(value)) for symbol, value in zip(view.decision.flat, point)}


def _points(compiled: CompiledProblem, view: SymbolicView) -> Iterator[np.ndarray]:
    """Random points of X at which Y(x) is not empty."""
    rng = np.random.default_rng(0)
    limits = [view.region.limits(symbol) for symbol in view.decision.flat]
    finite = [low.is_finite and high.is_finite for low, high in limits]
    low, high = (np.array([float(e[k]) if f else 3.0 * (2 * k - 1) for e, f in zip(limits, finite)]) for k in (0, 1))
    for point in on_upper_set(compiled, low + (high - low) * rng.random((_TRIES, low.size))):
        if bool(view.domain.xreplace(_all_digits(view, point))):
            yield point


def translate(expression: Any, environment: Mapping[int, Scalars]) -> Scalars:
    """The expression as an array of SymPy scalars, of its shape; ``environment`` has one for each leaf id.

    Raises ``SymbolicError`` for an atom without a rule; names it.
    """

    def translated(node: Any, visit: Callable[[Any], Scalars]) -> Scalars:
        if isinstance(node, cp.Constant):
            value = exact_array(node.value)
        else:
            value = environment[node.id] if isinstance(node, Leaf) else _formula(node, list(map(visit, node.args)))
        return np.asarray(value, dtype=object).reshape(tuple(node.shape))

    return memoised(translated)(expression)


def _formula(node: Any, values: list[Scalars]) -> Any:
    if isinstance(node, SampleAverage):
        raise SymbolicError(f"{expression_text(node)} is over data, not a formula of x.")
    formula = row_of(node).formula
    if formula is not None:
        try:
            return formula(node, *values)
        except NoAnswerError as reason:
            raise SymbolicError(str(reason).format(atom=expression_text(node))) from None
    if isinstance(node, AffAtom):
        return _affine(node, *values)
    raise SymbolicError(f"{type(node).__name__} in {expression_text(node)} has no translation to SymPy.")


def _affine(atom: Any, *values: Scalars) -> Scalars:
    """Affine in the arguments that are not numbers, jointly: CVXPY's own value at 0, and its change along each entry."""
    symbolic = [any(entry.free_symbols for entry in value.flat) for value in values]
    points = [np.zeros(v.shape) if moves else v.astype(float) for v, moves in zip(values, symbolic)]
    moving = [place for place, moves in enumerate(symbolic) if moves]
    base, matrices = affine_map(atom, points, moving)
    result = exact_array(base)
    for place, matrix in zip(moving, matrices):
        entries, (rows, columns) = values[place].ravel(), matrix.nonzero()
        for row, column in zip(rows, columns):
            result[row] += exact(matrix[row, column]) * entries[column]
    return result.reshape(atom.shape)


SIZE_LIMIT = 200  # scalars of x and of all owners' y
JOINED_LIMIT = 20  # scalars of x in one term of f: what is not separable grows fast
_Environment = dict[int, Scalars]


@double_precision
def symbolic(compiled: CompiledProblem) -> SymbolicView:
    """The formulas; errors as for ``ImplicitFunction.symbolic``."""
    declaration = compiled.declaration
    _require_applicable(declaration)
    symbols = DecisionSymbols(compiled.upper)
    region = _region(compiled, symbols)
    environments = _environments(declaration, symbols)
    answers = _answers(declaration, environments, region)
    owners = [compiled.lower.split(as_array(answer.entries, (compiled.lower.size,))) for answer in answers]
    whole = _upper_value(declaration, environments, owners)
    _require_separable(whole)
    region = replace(region, conditions=tuple(c for answer in answers for c in answer.conditions))
    value = _readable(region.simplified(whole), region)
    kinks, unknown = find_kinks(value, region)
    x = {v: _public(symbols.arrays[v.id]) for v in compiled.upper.variables}
    of_each = {v: [own[v.id] for own in owners] for v in (compiled.lower.variables if owners else ())}
    response = {v: _public(each[0] if len(each) == 1 else np.stack(each)) for v, each in of_each.items()}
    view = SymbolicView(x, response, value, kinks, unknown, region.domain, CHECKS, symbols, region)
    _verify(compiled, view)
    return view


def _require_applicable(declaration: Declaration) -> None:
    level, roles = declaration.lower_level, declaration.roles
    tables = [*roles.client_tables, *roles.server_tables]
    if tables:
        data = f"the problem is over data (sample {tables[0][0].name()!r}): f is a mean over rows, not a formula of x"
        raise SymbolicError(f"{data}. A declaration with cp.Parameter or hf.ClientParameter in place of the samples has one.")
    if isinstance(level, Followers):
        raise SymbolicError("there are several lower levels in sequence: formulas are derived for one. Slices and gradients take them as they are.")
    if level is not None and level.scope == "sample":
        raise SymbolicError("the lower level has a y for each sample: a formula needs one of the federation or the clients.")
    federation = declaration.federation
    owners = federation.num_clients if level is not None and level.scope == "client" and federation else 1
    size = sum(v.size for v in roles.upper) + owners * sum(v.size for v in roles.lower)
    if size > SIZE_LIMIT:
        raise SymbolicError(f"x and y have {size} scalars; formulas of more than {SIZE_LIMIT} are not derived. Declare a smaller instance.")


def _require_separable(value: Expr) -> None:
    """No term of f joins many scalars of x."""
    joined = max((len(term.free_symbols) for term in sympy.Add.make_args(value)), default=0)
    if joined > JOINED_LIMIT:
        most = f"beyond {JOINED_LIMIT}, formulas are derived only for sums of terms in few scalars each"
        raise SymbolicError(f"a term of f joins {joined} scalars of x: {most}. Declare a smaller instance.")


def _region(compiled: CompiledProblem, symbols: DecisionSymbols) -> Region:
    box = known_box(compiled)
    return Region({symbol: (exact(low), exact(high)) for symbol, low, high in zip(symbols.flat, box.lo, box.hi)})


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
    level = declaration.lower_level
    if level is None:
        return []
    weights = [exact(weight) for weight in declaration.client_weights]
    parties = list(zip(weights, environments))
    groups = [[party] for party in parties] if level.scope == "client" else [parties]
    return [_answer(level, group, region) for group in groups]


def _answer(level: Any, parties: list[tuple[Expr, _Environment]], region: Region) -> AnswerFormula:
    """y(x) of one owner: the weighted mean of its parties' objectives, over all their constraints."""
    symbols = DecisionSymbols(Layout(tuple(level.variables)))
    unknowns, flat = symbols.arrays, symbols.flat
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


def _upper_value(declaration: Declaration, environments: list[_Environment], owners: list[_Environment]) -> Expr:
    """f(x), the answers of the ``owners`` in place of y."""
    objective, weights = declaration.objective, declaration.client_weights
    total = sympy.S.Zero
    if objective.server is not None:
        own = owners[0] if len(owners) == 1 else {}
        total += translate(objective.server, {**environments[0], **own}).ravel()[0]
    if objective.clients is not None:
        for place, (weight, environment) in enumerate(zip(weights, environments)):
            own = owners[min(place, len(owners) - 1)] if owners else {}
            total += exact(weight) * translate(objective.clients, {**environment, **own}).ravel()[0]
    return total


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

"""``problem.implicit.symbolic()``: y(x) and f(x) as formulas, with their kinks and one-sided derivatives exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import sympy

from hierfl.atoms.formulas import Expr, Scalars, as_array, exact
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.inspect.symbolic.branches import Region, formula_text, one_sided_derivatives
from hierfl.inspect.symbolic.symbolic_kinks import SymbolicKink
from hierfl.language.printing.latex import expression_latex
from hierfl.language.printing.text import expression_text


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
            raise SettingError(
                f"x={x} is outside the declared bounds or Y(x) is empty there: the formula need not hold."
            )
        return one_sided_derivatives(self.value, point, step)

    def latex(self) -> str:
        """y(x), f(x) and the kinks as LaTeX (an ``aligned`` display)."""
        names = self.decision.latex
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
class DecisionSymbols:
    """The scalars of x: one real symbol per entry, named as CVXPY indexes it."""

    variables: tuple[cp.Variable, ...]
    arrays: dict[int, Scalars]
    compiled: CompiledProblem

    @classmethod
    def of(cls, compiled: CompiledProblem) -> DecisionSymbols:
        variables = compiled.upper.variables
        return cls(variables, {v.id: symbols_of(v) for v in variables}, compiled)

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


def symbols_of(variable: cp.Variable) -> Scalars:
    """One real symbol for each entry of a variable, named as CVXPY indexes it."""
    names = [expression_text(variable[place] if variable.ndim else variable) for place in np.ndindex(*variable.shape)]
    return as_array([sympy.Symbol(name, real=True) for name in names], tuple(variable.shape))


def _kink_latex(kink: SymbolicKink, names: Mapping[Expr, str]) -> str:
    where = sympy.latex(kink.condition, symbol_names=names)
    if kink.coordinate is None:
        return str(where)
    left, right = (sympy.latex(slope, symbol_names=names) for slope in (kink.left_slope, kink.right_slope))
    return rf"{where}, \text{{ slopes }} {left} \text{{ and }} {right}"

"""SymPy formulas as one line of text, with cases in braces: ``{x**2 if x < 0; 0 otherwise}``."""

from __future__ import annotations

from typing import Any

import sympy
from sympy.printing.str import StrPrinter


class _Printer(StrPrinter):
    def _print_Piecewise(self, expr: Any) -> str:  # noqa: N802 - the name that SymPy looks for
        return "{" + "; ".join(self._case(branch, condition) for branch, condition in expr.args) + "}"

    def _case(self, branch: Any, condition: Any) -> str:
        when = "otherwise" if condition == sympy.true else f"if {self._print(condition)}"
        return f"{self._print(branch)} {when}"


def formula_text(formula: Any) -> str:
    """The formula as text."""
    return str(_Printer().doprint(formula))

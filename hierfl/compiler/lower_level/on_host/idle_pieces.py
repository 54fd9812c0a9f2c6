"""Pieces that are never met: max(w, 0) and |w| are w where w cannot be negative.

They are smooth there, and JAX's derivative of them is not that of w where w = 0: both pieces have a half.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp

from hierfl.analysis.enclosure import Enclosure
from hierfl.analysis.hoist import copy_with
from hierfl.atoms.algebra import positive_part


def without_idle_pieces(expression: Any, enclosure: Enclosure) -> Any:
    """The expression without them; itself where there are none."""
    if not getattr(expression, "args", None) or not expression.variables():
        return expression
    parts = {id(argument): without_idle_pieces(argument, enclosure) for argument in expression.args}
    if any(parts[id(argument)] is not argument for argument in expression.args):
        expression = copy_with(expression, lambda argument: parts.get(id(argument), argument))
    return _busy(expression, enclosure)


def _busy(atom: Any, enclosure: Enclosure) -> Any:
    """What is left of a size, or of a maximum or minimum with zero."""
    if isinstance(atom, cp.abs):
        w = atom.args[0]
        return next((one for one in (w, -w) if _is_positive(one, enclosure)), atom)
    sign = -1 if isinstance(atom, cp.minimum) else 1
    w = positive_part(-atom if sign < 0 else atom)
    return atom if w is None or not _is_positive(w, enclosure) else w if sign > 0 else -w


def _is_positive(w: Any, enclosure: Enclosure) -> bool:
    return bool(w.is_nonneg()) or bool((enclosure(w).lo >= 0).all())

"""Which lower objectives have a locally Lipschitz gradient in y."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.power import Power

from hierfl.analysis.enclosure import Enclosure
from hierfl.language.function import UserAtom

_SMOOTH = (cp.log_sum_exp, cp.logistic, cp.huber, cp.exp, cp.QuadForm, cp.quad_over_lin)


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
    if isinstance(atom, (cp.quad_over_lin, cp.QuadForm)):
        return not any(v.id in lower_ids for v in atom.args[1].variables())
    if isinstance(atom, Power):
        exponent = float(np.asarray(atom.p.value)) if hasattr(atom.p, "value") else float(atom.p)
        defined = exponent % 2 == 0 or bool((enclosure(atom.args[0]).lo >= 0).all())
        return exponent in (0.0, 1.0) or (exponent >= 2.0 and defined)
    return isinstance(atom, (AffAtom, UserAtom, *_SMOOTH))

"""Classes of a user's own: what is said of them is held against their numeric, and what disagrees is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from cvxpy.reductions.dcp2cone.canonicalizers import CANON_METHODS

import hierfl as hf
from hierfl.atoms.formulas import entry_by_entry
from hierfl.atoms.intervals import Interval
from hierfl.atoms.ranges import always_smooth, everywhere, slopes_between
from hierfl.atoms.row import AtomRow
from hierfl.atoms.table import row_of
from hierfl.atoms.writing.spelling import Spelling
from hierfl.compiler.programs.smooth_atoms import EXP, LOGISTIC

BEND = lambda v: 1 / (2 + np.exp(v) + np.exp(-v))  # noqa: E731
X, Y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
ROW, CONE, SOFT = row_of(cp.logistic(X)), CANON_METHODS[cp.logistic], jax.nn.softplus


def declared(cone: Any = CONE, kind: Any = None, row: dict[str, Any] | None = None, **said: Any) -> hf.Problem:
    kind = kind or type("softplus", (cp.logistic,), {"atom_row": replace(ROW, **(row or {})), "smooth_atom": LOGISTIC, **said})
    CANON_METHODS.update({} if cone is None else {kind: cone})
    return hf.Problem(hf.Minimize(clients=cp.sum(kind(Y))), hf.ArgMin(Y, cp.sum(kind(Y - X)) + cp.sum_squares(Y), [cp.sum(kind(Y)) <= 1]))


def test_one_that_agrees_with_itself_is_what_cvxpys_is() -> None:
    at, ours, told = np.array([0.3, -0.2]), declared().implicit, declared(kind=cp.logistic).implicit
    np.testing.assert_allclose([ours(at), *ours.gradient(at)], [told(at), *told.gradient(at)], rtol=1e-7)
    with pytest.raises(hf.UnsupportedAtomError, match="no conic form of softplus"):
        declared(cone=None).implicit(at)


FAULTS: dict[str, dict[str, Any]] = {
    "atom_row = {}: write": {"atom_row": {}},
    "spellings='softplus'": {"row": {"spellings": "softplus"}},
    "lower gives .*, not": {"row": {"lower": lambda atom, v: 2 * SOFT(v)}},
    "lower gives 1.38.*, not": {"row": {"lower": lambda atom, v: SOFT(v).sum()}},
    "lower raises .*lower.atom, .values": {"row": {"lower": SOFT}},
    "derivative of lower": {"row": {"lower": lambda atom, v: jax.lax.stop_gradient(SOFT(v))}},
    "slopes gives": {"row": {"slopes": slopes_between(0.0, 0.1)}},
    "range gives 3": {"row": {"range": lambda atom, intervals: 3}},
    "slopes over": {"row": {"slopes": lambda atom, intervals: Interval.of(1 / (1 + np.exp(-intervals[0].hi)))}},
    "second_derivative over": {"row": {"second_derivative": lambda atom, v: Interval(BEND(v.hi), BEND(v.lo))}},
    "range over": {"row": {"range": lambda atom, intervals: Interval.of(np.logaddexp(0, intervals[0].lo))}},
    "formula gives": {"row": {"formula": entry_by_entry(lambda v: sympy.log(1 + sympy.exp(2 * v)))}},
    "formula raises .*entry_by_entry": {"row": {"formula": sympy.exp}},
    r"AtomRow\(smooth=True\): a function": {"row": {"smooth": True}},
    "is_atom_convex or is_atom_concave deny": {"is_atom_concave": lambda self: True},
    "value of smooth_atom": {"smooth_atom": EXP},
    "slope of smooth_atom": {"smooth_atom": replace(LOGISTIC, slope=lambda v: -LOGISTIC.slope(v))},
    "curvature of smooth_atom": {"smooth_atom": replace(LOGISTIC, curvature=lambda v: np.nan * v[:, None])},
    r"is_incr\(0\), False, or is_decr\(0\), True, deny": {"is_incr": lambda self, idx: False, "is_decr": lambda self, idx: True},
    "sign_from_args denies": {"sign_from_args": lambda self: (False, True)},
    "is_atom_convex": {"is_atom_convex": lambda self: False, "is_atom_concave": lambda self: True},
    "CANON_METHODS gives": {"cone": lambda e, args, solver_context=None: CONE(e, [2 * args[0]])},
    "CANON_METHODS raises .*solver_context=None": {"cone": lambda e: (e, [])},
}


@pytest.mark.parametrize("said", FAULTS)
def test_what_disagrees_is_named(said: str) -> None:
    with pytest.raises(hf.DeclarationError, match=said):
        declared(**FAULTS[said])


@pytest.mark.parametrize("said", [{"smooth": always_smooth}, {"twice_smooth": everywhere}])
def test_a_kink_that_is_denied_is_named(said: dict[str, Any]) -> None:
    row = AtomRow(lower=lambda atom, v: jnp.maximum(jnp.abs(v) - 1, 0), **said)
    dead = type("dead", (cp.abs,), {"atom_row": row, "numeric": lambda self, values: np.maximum(np.abs(values[0]) - 1, 0)})
    with pytest.raises(hf.DeclarationError, match=rf"{next(iter(said))}, where the slope jumps at \[(-1|1|0.99|-0.99)"):
        hf.Problem(hf.Minimize(cp.sum(dead(Y))), hf.ArgMin(Y, cp.sum_squares(Y - X)))


@pytest.mark.parametrize("smooth", [True, False])
def test_a_kink_that_a_row_does_not_tell_is_found_by_numbers(smooth: bool) -> None:
    """sum |v| has no gradient at 0, and a row that says neither where it is smooth nor where it switches does not deny that."""
    base, lower, slope = (cp.logistic, SOFT, lambda v: 1 / (1 + np.exp(-v))) if smooth else (cp.abs, jnp.abs, np.sign)
    row = AtomRow(lower=lambda atom, v: lower(v), spellings=(Spelling("size", latex="s"),))
    kind = type("size", (base,), {"atom_row": row})
    f = hf.Problem(hf.Minimize(cp.sum(kind(X)) + cp.sum_squares(Y)), hf.ArgMin(Y, cp.sum_squares(Y - X))).implicit
    if smooth:
        np.testing.assert_allclose(f.gradient(np.zeros(2)), slope(np.zeros(2)), atol=1e-9)
    else:
        with pytest.raises(hf.NoGradientError):
            f.gradient(np.zeros(2))
    at = np.array([0.5, -0.5])
    np.testing.assert_allclose(f.gradient(at), slope(at) + 2 * at, atol=1e-8)

"""``communication="scalars"``: the trajectory of full vectors, at one number per direction."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL, Exact, FedRZO
from tests.draws import fold_in

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
RNG = np.random.default_rng(0)
DATA = [RNG.standard_normal((n, 3)) for n in (4, 7, 2)]


def problem(scope: str | None, *constraints: Any, server: bool = False) -> hf.Problem:
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    federation = hf.Federation([hf.Client({u: rows}) for rows in DATA])
    limits = [c(x) for c in constraints]
    extra = cp.sum_squares(x) if server else None
    if scope is None:
        return hf.Problem(hf.Minimize(clients=hf.E(cp.abs(u @ x - 1)), server=extra), None, limits, federation)
    mean = (lambda e: e) if scope == "sample" else hf.E
    level = hf.ArgMin(y, mean(cp.sum_squares(y - u)) + cp.sum_squares(y - x), [y <= 1], scope=scope)
    upper = cp.sum_squares(y - u) if scope == "sample" else cp.sum_squares(y - x)
    return hf.Problem(
        hf.Minimize(clients=mean_of(scope, upper) + cp.sum_squares(x - 1), server=extra), level, limits, federation
    )


def mean_of(scope: str, term: Any) -> Any:
    return hf.E(term) if scope == "sample" else term


@pytest.mark.parametrize(
    ("scope", "constrained"), [("federation", False), ("client", True), (None, True), ("sample", False)]
)
def test_fedrzo_rebuilds_the_trajectory(scope: str | None, constrained: bool) -> None:
    declared = problem(scope, *([lambda x: x >= -0.2, lambda x: x <= 0.4] if constrained else []))
    settings: dict[str, Any] = {"step_size": 0.01, "local_steps": 3, "directions": 2, "participation": 0.6}
    runs = {
        way: declared.solve(FedRZO(communication=way, lower=Exact(), **settings), rounds=40, progress=False)
        for way in ("full", "scalars")
    }
    np.testing.assert_allclose(runs["scalars"].iterate, runs["full"].iterate, atol=1e-9)
    each = 2 if scope == "federation" and not constrained else 2 * 3
    assert runs["scalars"].communication["scalars_up_per_round"] == 2 * each


@pytest.mark.parametrize("scope", [None, "client"])
def test_zohfl_sends_one_number_each(scope: str | None) -> None:
    declared = problem(scope, lambda x: x >= -0.2)
    runs = {
        way: declared.solve(ZOHFL(communication=way, step_size=0.01, lower=Exact()), rounds=40, progress=False)
        for way in ("full", "scalars")
    }
    np.testing.assert_allclose(runs["scalars"].x, runs["full"].x, atol=1e-9)
    sent = runs["scalars"].communication
    assert sent["scalars_up"] == 40 * 3
    assert sent["scalars_down"] == 39 * 3 * 3  # each learns all three numbers of the round before; x0 is known


def test_absent_clients_catch_up() -> None:
    """Every participant is sent the scalars of all rounds since it last took part: counted from the actual cohorts."""
    import jax

    from hierfl.runtime.contract import draw_participants

    rounds, down, last = 12, 0, np.zeros(3, int)
    for r in range(rounds):
        key = fold_in(jax.random.key(4), r)
        for client in np.asarray(draw_participants(key, 2, 3)):
            down += (r - last[client]) * 2
            last[client] = r
    solver = ZOHFL(communication="scalars", participation=0.5, lower=Exact())
    result = problem("client").solve(solver, rounds=rounds, seed=4, progress=False)
    assert result.communication["scalars_down"] == down


def test_what_cannot_be_rebuilt_is_refused() -> None:
    with pytest.raises(hf.errors.SettingError, match="server's own term"):
        problem(None, server=True).solve(FedRZO(communication="scalars"), rounds=1, progress=False)
    with pytest.raises(hf.errors.SettingError, match="control variates"):
        problem(None).solve(FedRZO(communication="scalars", control_variate=True), rounds=1, progress=False)
    with pytest.raises(hf.errors.SettingError, match="communication"):
        ZOHFL(communication="telepathy")

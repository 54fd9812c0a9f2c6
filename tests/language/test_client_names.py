"""Messages call a client by the name that it was given."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL, FedAvg

x, y, a = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="a")
bound = hf.ClientParameter(name="bound")


def problem(scope: str, names: tuple[str | None, ...] = ("north", "south")) -> hf.Problem:
    miss = cp.square(y - a)
    clients = [hf.Client({a: np.array([i, i + 1.0])}, {bound: i}, name=name) for i, name in enumerate(names)]
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(y - x)) if scope == "sample" else cp.square(y - x)),
        hf.ArgMin(y, miss if scope == "sample" else hf.E(miss), [y <= bound + x, y >= 0], scope=scope),
        federation=hf.Federation(clients),
    )


def test_kinks_and_rows() -> None:
    causes = [str(kink.cause) for kink in problem("sample").implicit.slice(1.0, 1.0, points=101, progress=False).kinks]
    assert any("'north', row" in cause for cause in causes) and any("'south', row" in cause for cause in causes)
    assert not any("client 0" in cause or "client 1" in cause for cause in causes)


@pytest.mark.parametrize("scope", ["client", "sample"])
def test_empty_sets(scope: str) -> None:
    with pytest.raises(hf.EmptyLowerSetError, match=r"of client 'north'.*x = \[-0\.5\]"):
        problem(scope).implicit(-0.5)
    with pytest.raises(hf.EmptyLowerSetError, match="of client 0"):
        problem(scope, (None, "south")).implicit(-0.5)


def test_runs_that_fail() -> None:
    with pytest.raises(hf.EmptyLowerSetError, match="round 0, client 'north': Y"):
        problem("client").solve(ZOHFL(smoothing=2.0), rounds=5, x0=0.0, progress=False)
    far = hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(x - a))), federation=hf.Federation([hf.Client({a: np.ones(2)}, name="east")])
    )
    with pytest.raises(hf.DivergedError, match="client 'east'"):
        far.solve(FedAvg(step_size=100.0), rounds=100, progress=False)


def test_what_a_client_lacks() -> None:
    other = hf.Sample(name="other")
    with pytest.raises(hf.DataError, match="client 'west' has no value for sample 'other'"):
        hf.Federation([hf.Client({a: np.ones(2), other: np.ones(2)}), hf.Client({a: np.ones(2)}, name="west")])


def test_assumptions() -> None:
    assert "client 'south'" in str(problem("client").check()) or "client 'north'" in str(problem("client").check())
    assert "client 0" not in str(problem("client").check())

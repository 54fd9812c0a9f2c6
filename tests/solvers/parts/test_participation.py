"""Scripts of who takes part: what they mean, what is counted, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import FedAvg, FedRZO, ImplicitGradient

SCRIPT = np.array([[1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 1, 0]], dtype=bool)
TARGETS = np.array([-1.0, 1.0, 4.0])


def problem() -> hf.Problem:
    """min over x of the mean of (x - t_i)^2 / 2."""
    x, target = cp.Variable(name="x"), hf.ClientParameter(name="target")
    clients = [hf.Client({}, {target: value}) for value in TARGETS]
    return hf.Problem(hf.Minimize(clients=0.5 * cp.square(x - target)), federation=hf.Federation(clients))


def run(solver: Any, **settings: Any) -> hf.Result:
    return problem().solve(solver, **{"rounds": 4, "x0": 0.5, "progress": False, "evaluate_every": 1, **settings})


@pytest.mark.parametrize("absent", ["unbiased", "renormalise", "zero"])
def test_a_script_by_hand(absent: str, tmp_path: Path) -> None:
    """x <- x - 0.1 sum over S_r of w (x - t_i), w = 1/|S_r| or 1/3; counts by hand; a result keeps them."""
    result = run(ImplicitGradient(step_size=0.1, participation=SCRIPT, absent=absent))
    x, iterates = 0.5, [0.5]
    for present in SCRIPT:
        x -= 0.1 * np.sum(x - TARGETS[present]) / (3 if absent == "zero" else present.sum())
        iterates.append(x)
    np.testing.assert_allclose(result.trajectory["x"].ravel(), iterates, atol=1e-14)
    sent = result.communication
    assert (sent["scalars_up"], sent["scalars_down"], sent["participants_per_round"]) == (7, 7, 7 / 4)
    result.save(tmp_path / "run")
    kept = hf.Result.load(tmp_path / "run")
    np.testing.assert_array_equal(kept.history["participants"], [2, 1, 3, 1])
    assert kept.settings["solver_given"].startswith("ImplicitGradient(participation=<4 x 3 array of bool>")


def test_another_script_of_as_many_clients_compiles_nothing(programs: list[str]) -> None:
    own, settings = problem(), {"rounds": 4, "x0": 0.5, "progress": False}
    first = own.solve(FedAvg(participation=SCRIPT), **settings).x
    programs.clear()
    other = own.solve(FedAvg(participation=SCRIPT[::-1]), **settings).x
    assert not programs
    assert other != first


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (SCRIPT[:3], r"shape \(3, 3\), but this run has 4 rounds and the problem 3 clients: .*\(4, 3\)"),
        (SCRIPT[:, :2], r"shape \(4, 2\)"),
        (SCRIPT & ~SCRIPT[2], "participation of round 0 is empty"),
        (SCRIPT.astype(int), r"int64 of shape \(4, 3\).*astype\(bool\)"),
        ([True, False, True], r"bool of shape \(3,\).*\(rounds, clients\)"),
        (lambda r: [] if r == 2 else [0], "participation of round 2 is empty"),
        (lambda r: [r], "round 3 names client 3: the clients are 0, ..., 2"),
        (lambda r: [-1], "names client -1"),
        (lambda r: [1, 0, 1], "round 0 names client 1 twice"),
        (lambda r: SCRIPT[r], "np.flatnonzero"),
        (lambda r: [0.5], r"round 0 is \[0.5\]: a list of the indices"),
        (lambda r: "all", "round 0 is 'all'"),
        (lambda r: None, "round 0 is None"),
        (lambda: [0], r"participation is called with the round"),
        ("all", "participation='all': a fraction"),
        (None, "participation=None: a fraction"),
        ([[0], [1, 2]], r"participation=\[\[0\], \[1, 2\]\] has rows of several lengths"),
        (0, "participation=0"),
    ],
)
def test_what_is_refused(script: Any, said: str) -> None:
    with pytest.raises(hf.SettingError, match=said):
        run(FedAvg(participation=script))


def test_what_a_script_does_not_go_with() -> None:
    with pytest.raises(hf.SettingError, match="scripted participation"):
        run(FedAvg(participation=SCRIPT), tolerance=0.1, evaluate_every=2)
    with pytest.raises(hf.SettingError, match="all clients take part"):
        run(FedRZO(participation=SCRIPT, schedule="theory"))

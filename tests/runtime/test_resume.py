"""A resumed run is the run that was never stopped, bit for bit: of every solver, of several seeds, and however it ends or is ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.lower_level.methods.method import Verdict
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram
from hierfl.descent.answers import FAILURES, VALUE
from hierfl.jaxtools import interruption
from hierfl.runtime.in_process import execution
from hierfl.solvers import SCAFFOLD, FedAvg, FedMSPP, FedProx, FedRZO, FedZO
from tests.runtime import killed_run
from tests.runtime.resumed import (
    by_and_by,
    outcome,
    require_killed_further,
    require_same,
    stored_arrays,
    total,
)
from tests.runtime.sites.test_same_path import CASES, DESCENT, EVERYBODY, SEED, START, Case, flat
from tests.small_declarations import quartic
from tests.solvers.test_baselines import least_squares

EACH = {  # a case of every solver, those with memories among them; all others in the slow test
    "ZOHFL, scalars",
    "FedRZO, control variates",
    "ImplicitGradient, a linear system",
    "FedAvg",
    "FedProx",
    "SCAFFOLD",
    "Scaffnew",
    "FedMSPP",
    "FedZO",
    "LocalSGDA",
}


ALL = CASES | {  # and those whose messages are the same as another's
    "FedProx": Case(flat, FedProx(**DESCENT)),
    "FedMSPP": Case(flat, FedMSPP(**DESCENT)),
    "FedZO": Case(flat, FedZO(**DESCENT, directions=2)),
}


@pytest.mark.parametrize("case", [case if case in EACH else pytest.param(case, marks=pytest.mark.slow) for case in ALL])
def test_every_solver_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    problem, solver = ALL[case].problem(EVERYBODY), ALL[case].solver
    settings = {"rounds": 10, "evaluate_every": 2, "x0": START, "seed": SEED}
    found, stopped = by_and_by(problem, solver, tmp_path, 2, **settings)
    assert stopped == 2 or (stopped and found.ended == "at rest")  # Newton's method ends before
    require_same(found, outcome(problem, solver, **settings))


def edge() -> hf.Problem:
    """Y(x) is empty beyond x = 2/3, which the method learns from points without an answer, and f has a kink at its least value."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return hf.Problem(
        hf.Minimize(clients=cp.abs(x - 0.6) - 0.5 * x + 0 * y),
        hf.ArgMin(y, cp.square(y), [y >= x, y <= 1 - x / 2]),
        [x >= -5, x <= 5],
    )


@pytest.mark.parametrize("several", [{}, {"seeds": 2}])
def test_the_bundle_method_is_given_its_answers_again(several: dict[str, int], tmp_path: Path) -> None:
    settings = {"x0": -4.0, "evaluate_every": 2, "rounds": 60, **several}
    found, stopped = by_and_by(edge(), None, tmp_path, 3, **settings)
    wanted = outcome(edge(), None, **settings)
    assert stopped > 1 and isinstance(wanted, hf.Runs) == bool(several)
    for ours, theirs in zip(found, wanted) if several else [(found, wanted)]:
        assert "ImplicitBundle" in theirs.settings["solver"] and theirs.status == "at rest"
        assert theirs.x == pytest.approx(0.6, abs=1e-8)
        require_same(ours, theirs)
    kinds = [kind for array in stored_arrays(tmp_path, "0/memory/0") for kind in array]
    assert set(kinds) == {FAILURES.index(hf.EmptyLowerSetError), VALUE}  # answers of both kinds were given again


def test_iterations_on_the_lower_level_begin_again_where_they_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, x, y = np.random.default_rng(3), cp.Variable(name="x"), cp.Variable(20, name="y")
    u, t = hf.Sample(20, name="u"), hf.Sample(name="t")
    data = {u: random.standard_normal((1_000, 20)), t: np.sign(random.standard_normal(1_000))}

    def declared() -> hf.Problem:
        loss = hf.E(cp.logistic(-t * (u @ y))) + 0.5 * cp.exp(x) * cp.sum_squares(y)
        top, federation = hf.Minimize(clients=cp.sum_squares(y - 0.1)), hf.Federation([hf.Client(data)])
        return hf.Problem(top, hf.ArgMin(y, loss), [cp.abs(x) <= 6], federation)

    problem = declared()
    monkeypatch.setattr(ParametricProgram, "verdict", classmethod(lambda cls, structure: Verdict(False, "is left out")))
    assert problem.compile().exact.method.iterative
    settings = {"x0": -2.0, "evaluate_every": 2, "rounds": 60}
    found, stopped = by_and_by(problem, None, tmp_path, 3, **settings)
    assert stopped > 1
    require_same(found, outcome(declared(), None, **settings))


ENDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "completed": (FedAvg(0.05, 2, batch_size=2), {"rounds": 25}),
    "stagnated": (FedAvg(0.05, 2, batch_size=2), {"rounds": None, "evaluate_every": 64}),
    "gradient tolerance reached": (FedAvg(0.05, 1, batch_size=None), {"rounds": 500, "tolerance": 0.1}),
    "communication limit reached": (FedAvg(0.05, 1, batch_size=2), {"rounds": 60, "communication_limit": 400}),
    "a step that trials find": (FedAvg("auto", 2, batch_size=2), {"rounds": 25}),
}


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_where_it_would_have(end: str, tmp_path: Path) -> None:
    solver, settings = ENDS[end]
    found, stopped = by_and_by(least_squares(), solver, tmp_path, 3, **settings)
    wanted = outcome(least_squares(), solver, **settings)
    assert stopped and (end in (wanted.status, wanted.ended) or "auto" in wanted.settings)
    require_same(found, wanted)
    again, _ = by_and_by(least_squares(), solver, tmp_path, 3, **settings)
    require_same(again, wanted)  # and a run that has ended is not made again


def test_a_run_that_diverges_does_so_again(tmp_path: Path) -> None:
    settings = {"x0": [1.0, 2.0], "rounds": 40, "evaluate_every": 1}
    found, stopped = by_and_by(quartic(), FedRZO(step_size=3.0), tmp_path, 2, **settings)
    assert found.status == "diverged" and stopped
    require_same(found, outcome(quartic(), FedRZO(step_size=3.0), **settings))


@pytest.mark.parametrize("limit", [None, 300])
def test_seeds_that_stand_at_different_rounds_go_on_together(limit: float | None, tmp_path: Path) -> None:
    """Stopped in the middle of a block's end, where some seeds have reported and others have not."""
    settings = {"seeds": 4, "rounds": 37, "communication_limit": limit}
    found, stopped = by_and_by(least_squares(), SCAFFOLD(0.05, batch_size=2), tmp_path, 6, **settings)
    assert stopped
    for ours, theirs in zip(found, outcome(least_squares(), SCAFFOLD(0.05, batch_size=2), **settings), strict=True):
        assert theirs.ended == ("completed" if limit is None else "communication limit reached")
        require_same(ours, theirs)


def test_a_time_limit_ends_a_part_of_a_run(tmp_path: Path) -> None:
    def solve(**settings: Any) -> hf.Result:
        return least_squares().solve(FedAvg(0.05), metrics={"total": total}, rounds=40, progress=False, **settings)

    part = solve(checkpoint=tmp_path / "run", time_limit=1e-3)
    assert part.status == "time limit reached" and part.settings["rounds_done"] == 0
    assert "resume=True" in part.standing
    require_same(solve(checkpoint=tmp_path / "run", resume=True), solve())


def test_ctrl_c_ends_a_run_with_a_result_that_can_be_resumed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def solve(pressed_at: int | None, **settings: Any) -> Any:
        def callback(done: int, x: Any, y: Any) -> None:
            if done == pressed_at:
                signal.raise_signal(signal.SIGINT)

        return least_squares().solve(
            FedAvg(0.05), callback=callback, metrics={"total": total}, rounds=60, progress=False, **settings
        )

    part = solve(30, checkpoint=tmp_path / "run")
    assert part.status == "interrupted" and part.settings["rounds_done"] == 30
    assert "ending with what there is" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    require_same(solve(None, checkpoint=tmp_path / "run", resume=True), solve(None))
    bare = solve(30)  # where nothing is kept, the result is the same
    np.testing.assert_array_equal(bare.x, part.x)
    assert bare.status == "interrupted" and "resume" not in bare.standing


@pytest.mark.parametrize("solver", [FedAvg(0.05, batch_size=2), SCAFFOLD(0.05, batch_size=2)])
@pytest.mark.parametrize("settings", [{}, {"tolerance": 1e-9}, {"seeds": 2}])
def test_a_run_that_ends_within_a_block_goes_on_within_it(
    solver: Any, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics and tolerances are those of whole blocks, wherever a run was stopped, and however often."""
    asked = {"metrics": {"total": total}, "rounds": 40, "evaluate_every": 20, "progress": False, **settings}
    if isinstance(solver, SCAFFOLD):
        asked.pop("tolerance", None)  # its moves are no gradient steps
    monkeypatch.setattr(execution, "core_count", lambda: 1)  # all runs are side by side
    wanted = least_squares().solve(solver, **asked)
    monkeypatch.setattr(execution, "GROWTH", 1)  # a piece is a round
    rounds: list[int] = []
    left = [0]

    def heed() -> None:
        left[0] -= 1
        if left[0] < 0:
            for wish in interruption.present_wishes():
                wish.asked = 0.0
            raise interruption.CutShort

    monkeypatch.setattr(execution, "heed", heed)
    while not rounds or rounds[-1] < 40:
        left[0] = 7
        found = least_squares().solve(solver, checkpoint=tmp_path, resume=True, **asked)
        ended = found[0] if "seeds" in settings else found
        rounds.append(ended.settings["rounds_done"])
    assert rounds == [7, 14, 21, 28, 35, 40]
    for ours, theirs in zip(found, wanted) if "seeds" in settings else [(found, wanted)]:
        require_same(ours, theirs)


def test_ctrl_c_twice_ends_a_run_at_once(tmp_path: Path) -> None:
    def twice(done: int, x: Any, y: Any) -> None:
        for _ in range(2 * (done == 30)):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        least_squares().solve(FedAvg(0.05), callback=twice, rounds=60, progress=False, checkpoint=tmp_path)
    found = least_squares().solve(FedAvg(0.05), rounds=60, progress=False, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(found.x, least_squares().solve(FedAvg(0.05), rounds=60, progress=False).x)


def test_a_sweep_keeps_its_solvers_apart(tmp_path: Path) -> None:
    solvers = {"one": FedAvg(0.05), "two": FedAvg(0.02)}
    settings = {"seeds": [3], "rounds": 10, "progress": False, "checkpoint": tmp_path, "resume": True}
    first, second = (hf.sweep(least_squares(), solvers, **settings) for _ in range(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    require_same(first["two"][0], second["two"][0], of_one_folder=True)


@pytest.mark.optimised  # as the other process is
def test_a_run_that_is_killed_again_and_again_comes_to_the_same_end(tmp_path: Path) -> None:
    """Each process goes on from what the last one left."""
    for seed in (1, 4):
        require_killed_further(killed_run.__name__, tmp_path, str(tmp_path), str(seed))
    require_same(killed_run.solve(tmp_path), killed_run.solve(None))

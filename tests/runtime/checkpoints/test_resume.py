"""A resumed run is the run that was never stopped, bit for bit: of every solver, of several seeds, and however it ends or is ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import SCAFFOLD, FedAvg, FedRZO, ImplicitBundle
from tests.runtime.checkpoints.resumed import by_and_by, outcome, require_same, total
from tests.runtime.processes.test_process_runtime import CASES, EVERYBODY, SEED, START
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


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    """Programs that run for a moment need not be good ones."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize(
    "case", [case if case in EACH else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_every_solver_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    problem, solver = CASES[case].problem(EVERYBODY), CASES[case].solver
    settings = {"rounds": 10, "evaluate_every": 2, "x0": START, "seed": SEED}
    found, stopped = by_and_by(problem, solver, tmp_path, 2, **settings)
    assert stopped == 2
    require_same(found, outcome(problem, solver, **settings))


def kinked() -> hf.Problem:
    """A response with a kink at which the bundle method asks around, and a Y(x) that is empty beyond an edge."""
    x, y, rho = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.ClientParameter(name="rho")
    federation = hf.Federation([hf.Client(parameters={rho: value}) for value in (1.0, 1.5)])
    return hf.Problem(
        hf.Minimize(clients=cp.norm1(y) + cp.sum_squares(y - 0.3) - 3 * x[1]),
        hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0, cp.sum(x) + y[0] <= rho], scope="client"),
        federation=federation,
    )


@pytest.mark.parametrize("several", [{}, {"seeds": 2}])
def test_the_bundle_method_is_given_its_answers_again(several: dict[str, int], tmp_path: Path) -> None:
    problem, settings = kinked(), {"x0": [-1.0, -1.0], "evaluate_every": 2, "rounds": 60, **several}
    found, stopped = by_and_by(problem, None, tmp_path, 3, **settings)
    wanted = outcome(problem, None, **settings)
    assert stopped > 1 and isinstance(wanted, hf.Runs) == bool(several)
    for ours, theirs in zip(found, wanted) if several else [(found, wanted)]:
        assert "ImplicitBundle" in theirs.settings["solver"] and theirs.status != "completed"
        require_same(ours, theirs)


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
    assert stopped and (wanted.status == end or "auto" in wanted.settings)
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
        assert theirs.status == ("completed" if limit is None else "communication limit reached")
        require_same(ours, theirs)


def test_a_time_limit_ends_a_part_of_a_run(tmp_path: Path) -> None:
    def solve(**settings: Any) -> hf.Result:
        return least_squares().solve(FedAvg(0.05), metrics={"total": total}, rounds=40, progress=False, **settings)

    part = solve(checkpoint=tmp_path / "run", time_limit=1e-3)
    assert part.status == "time limit reached" and part.settings["rounds_done"] == 10
    assert "resume=True" in part.standing
    require_same(solve(checkpoint=tmp_path / "run", resume=True), solve())


def test_ctrl_c_ends_a_run_with_a_result_that_can_be_resumed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def solve(pressed_at: int | None, **settings: Any) -> Any:
        def callback(done: int, x: Any, y: Any) -> None:
            if done == pressed_at:
                signal.raise_signal(signal.SIGINT)

        return least_squares().solve(
            FedAvg(0.05), callback=callback, metrics={"total": total}, rounds=60, progress=False, **settings
        )

    part = solve(30, checkpoint=tmp_path / "run")
    assert part.status == "interrupted" and part.settings["rounds_done"] == 30
    assert "after this block of rounds" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    require_same(solve(None, checkpoint=tmp_path / "run", resume=True), solve(None))
    with pytest.raises(KeyboardInterrupt):  # as ever, where nothing is kept
        solve(30)


def test_ctrl_c_twice_ends_a_run_at_once(tmp_path: Path) -> None:
    def twice(done: int, x: Any, y: Any) -> None:
        for _ in range(2 * (done == 30)):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        least_squares().solve(FedAvg(0.05), callback=twice, rounds=60, progress=False, checkpoint=tmp_path)
    found = least_squares().solve(FedAvg(0.05), rounds=60, progress=False, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(found.x, least_squares().solve(FedAvg(0.05), rounds=60, progress=False).x)


def test_a_sweep_keeps_its_solvers_apart(tmp_path: Path) -> None:
    solvers = {"one": FedAvg(0.05), "two": FedAvg(0.02), "bundle": ImplicitBundle()}
    first, second = (
        hf.sweep(
            least_squares(bound=0.35), solvers, seeds=2, rounds=10, progress=False, checkpoint=tmp_path, resume=True
        )
        for _ in range(2)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]
    np.testing.assert_array_equal([run.x for run in first["two"]], [run.x for run in second["two"]])

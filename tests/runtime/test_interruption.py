"""Ctrl-C and time limits end a run with a result, and soon: whatever it is at."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import core

import hierfl as hf
from hierfl.compiler.programs import backends
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.interruption import CutShort, heed, heeded, impatient, over, reason
from hierfl.jaxtools.precision import double_precision
from hierfl.jaxtools.thread_pool import apart
from hierfl.solvers import FedAvg
from hierfl.solvers.lower import Exact
from tests.runtime import levels_at_sites
from tests.solvers.test_baselines import least_squares

# seconds, on a machine that has nothing else to do; workers beside this one take their share of it
SOON = 2.0 if "PYTEST_XDIST_WORKER" not in os.environ else 30.0
# --- problems that take long ------------------------------------------------------------------------------------------


def large_rounds(rows: int = 2000) -> hf.Problem:
    """Least squares of 10 clients, 2000 rows and 300 scalars each."""
    random = np.random.default_rng(0)
    return levels_at_sites.least_squares([(random.normal(size=(rows, 300)), random.normal(size=rows)) for _ in range(10)])


def costly_gradients() -> hf.Problem:
    """A lower level of degree four on a ball cut by a halfspace, for each of four clients."""
    random = np.random.default_rng(0)
    x, y, a = cp.Variable(30, name="x"), cp.Variable(60, name="y"), hf.Sample(60, name="a")
    mixed = random.normal(size=(60, 30)) / 8
    lower = hf.E(cp.sum(cp.power(y - mixed @ x - a, 4))) + cp.sum_squares(y)
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(y - a)) + cp.sum_squares(x) / 10),
        hf.ArgMin(y, lower, [cp.norm(y) <= 3, y >= -1], scope="client"),
        [cp.abs(x) <= 1],
        hf.Federation([hf.Client({a: random.normal(size=(200, 60))}) for _ in range(4)]),
    )


def answered_on_the_host() -> hf.Problem:
    """A variational inequality for each sample, over a cone and rows, from within a compiled loop."""
    random = np.random.default_rng(0)
    x, y, a = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(2, name="a")
    rows, cone, tilt = random.normal(size=(2, 3)), random.normal(size=(2, 3)), random.normal(size=3)
    noise, mixed = random.normal(size=(3, 2)), random.normal(size=(3, 3))
    on = [cp.SOC(1 + 0.3 * tilt @ y, cone @ y), rows @ y <= np.ones(2)]
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(y - 1) + 0.1 * cp.sum_squares(x))),
        hf.Equilibrium(y, 2 * (y - mixed @ x) + cp.power(y, 3) + noise @ a, on, scope="sample"),
        [cp.abs(x) <= 1],
        hf.Federation([hf.Client({a: random.normal(size=(3, 2))})]),
    )


Case = tuple[Callable[[], hf.Problem], Any, dict[str, Any]]
CASES: dict[str, Case] = {
    "blocks of rounds": (large_rounds, FedAvg(1e-5, 20), {"rounds": 10**5}),
    "a long round": (large_rounds, FedAvg(1e-6, 4000), {"rounds": 100}),
    "a step search": (large_rounds, FedAvg("auto", 200), {"rounds": 10**5}),
    "several seeds": (large_rounds, FedAvg(1e-5, 20), {"rounds": 10**5, "seeds": 3}),
    "the default solver": (costly_gradients, None, {"rounds": None}),
    "an exact lower level": (costly_gradients, hf.solvers.ZOHFL(lower=Exact()), {"rounds": 10**5}),
    "programs on the host": (answered_on_the_host, hf.solvers.ZOHFL(lower=Exact()), {"rounds": 10**5}),
}


@contextmanager
def pressed(after: float, begun: threading.Event | None = None) -> Iterator[list[float]]:
    """SIGINT to this process some seconds after something has begun; when, by ``time.perf_counter``."""
    when: list[float] = []

    def press() -> None:
        if begun is None or begun.wait(30.0):
            time.sleep(after)
            when.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield when
    finally:
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_run_ends_with_a_result_soon(case: str, tmp_path: Path) -> None:
    """By Ctrl-C while it is compiled or runs, and by a limit of time."""
    make, solver, settings = CASES[case]
    problem, random = make(), np.random.default_rng(list(CASES).index(case))
    for kept in ({"checkpoint": tmp_path}, {"time_limit": 2.0}):
        with nullcontext([time.perf_counter() + 2.0]) if "time_limit" in kept else pressed(random.uniform(0.5, 4.0)) as when:
            found = problem.solve(solver, progress=False, **settings, **kept)
        assert time.perf_counter() - when[0] < SOON
        for result in found if isinstance(found, hf.Runs) else [found]:
            assert result.status == ("time limit reached" if "time_limit" in kept else "interrupted")
            assert all(np.isfinite(np.asarray(x)).all() for x in (result.x, result.iterate))
            assert len(result.history["scalars"]) == result.settings["rounds_done"]


def test_an_interruption_where_jax_enters_a_trace_leaves_it_computing() -> None:
    """Else whatever the process does next is traced and has no values."""
    traces: list[Any] = []
    jax.jit(lambda x: traces.append(core.trace_ctx.trace) or x)(1.0)
    with pytest.raises(CutShort), heeded():
        core.set_current_trace(traces[0]).__enter__()
        raise CutShort
    assert float(jnp.ones(3).sum()) == 3.0


def test_ctrl_c_before_the_first_round_gives_the_start() -> None:
    problem = least_squares()
    problem.compile(progress=False)
    with heeded() as wish:
        wish.asked = time.perf_counter()
        result = problem.solve(FedAvg("auto"), rounds=50, x0=np.array([3.0, 4.0]), progress=False)
    assert result.status == "interrupted" and result.settings["rounds_done"] == 0
    np.testing.assert_array_equal(result.x, [3.0, 4.0])


def test_ctrl_c_ends_a_sweep_with_the_solvers_so_far() -> None:
    def press(x: Any, y: Any) -> float:
        if not called:
            signal.raise_signal(signal.SIGINT)
        called.append(1)
        return 0.0

    called: list[int] = []
    solvers = {"one": FedAvg(0.05), "two": FedAvg(0.02)}
    found = hf.sweep(least_squares(), solvers, seeds=2, rounds=40, metrics={"press": press}, progress=False)
    assert list(found) == ["one"] and {run.status for run in found["one"]} == {"interrupted"}
    assert "one" in found.table()


def test_ctrl_c_ends_a_run_of_python_functions_and_nothing_goes_on_behind() -> None:
    slept: list[int] = []

    def slow(v: np.ndarray) -> np.ndarray:
        slept.append(1)
        time.sleep(0.02)
        return np.asarray(v[0] ** 2)

    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=hf.BlackBox(slow, x) + cp.sum_squares(x)))
    with pressed(1.5) as when:
        result = problem.solve(hf.solvers.FedZO(0.01), rounds=10**5, progress=False)
    assert time.perf_counter() - when[0] < SOON and result.status == "interrupted"
    count = len(slept)
    time.sleep(0.2)
    assert len(slept) <= count + 1  # nothing goes on behind


@double_precision
def looped(function: Callable[[np.ndarray], np.ndarray], trips: int) -> np.ndarray:
    """A function on the host, called again and again by a compiled program."""

    def program(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, trips, lambda _, v: call_on_host(function, (3,), float, v), x)

    return np.asarray(jax.jit(program)(jnp.zeros(3)))


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_ctrl_c_gets_out_of_functions_on_the_host(pause: float) -> None:
    """They run within the compiled program, which would make an error of its own of what is raised there."""

    def called(v: np.ndarray) -> np.ndarray:
        time.sleep(pause)
        return v + 1.0

    with pressed(0.5) as when, pytest.raises(KeyboardInterrupt):
        looped(called, 10**7)
    assert time.perf_counter() - when[0] < 1.0


def test_ctrl_c_gets_out_of_programs_that_nobody_can_end() -> None:
    def spin(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: v[0] < 3e8, lambda v: v + jnp.ones(300), x)

    program = double_precision(quick_jit(spin))
    with pressed(1.0) as when, pytest.raises(KeyboardInterrupt):
        program(np.zeros(300))
    assert time.perf_counter() - when[0] < 1.0


def test_a_limit_of_time_is_seen_by_loops_and_by_force() -> None:
    began = time.perf_counter()
    with heeded(began + 0.1):
        with pytest.raises(CutShort):
            while True:
                heed()
        assert reason() == "time limit reached" and over()
        with pytest.raises(CutShort), impatient():
            while True:
                time.sleep(0.01)  # looks at nothing
        with pytest.raises(CutShort), impatient():
            apart(time.sleep, 10.0)
    assert time.perf_counter() - began < 2.0 and reason() is None and not over()


def test_wishes_of_one_thread_do_not_end_the_work_of_another() -> None:
    ends: list[bool] = []

    def other() -> None:
        with heeded():
            begun.wait()
            ends.append(over())

    begun, thread = threading.Event(), threading.Thread(target=other)
    thread.start()
    with heeded(0.0):
        assert over()
        begun.set()
        thread.join()
    assert ends == [False]


def test_somebody_elses_handler_is_left_alone() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        with pressed(0.2):
            result = least_squares().solve(FedAvg(0.05), rounds=20, progress=False, callback=lambda *_: time.sleep(0.3))
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard == [1] and result.ended == "completed"


def test_a_value_is_given_up_within_an_interior_point_method(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C meets Clarabel's callback, in which whatever is raised is lost."""
    asked = []

    def press_and_look() -> bool:
        asked.append(len(asked))
        if len(asked) == 3:
            signal.raise_signal(signal.SIGINT)
        return over()

    monkeypatch.setattr(backends, "over", press_and_look)
    x, y = cp.Variable(2, name="x"), cp.Variable(40, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - np.ones((40, 2)) @ x) + cp.norm1(y), [cp.norm(y) <= 1])
    with pytest.raises(KeyboardInterrupt):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), lower).implicit(np.ones(2))
    assert len(asked) == 3
    assert "Traceback" not in capfd.readouterr().err

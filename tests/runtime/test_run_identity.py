"""What a checkpoint belongs to: equal declarations made afresh are the same, and whatever differs is named."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.compiler.content_marks import content_mark
from hierfl.run_settings import RunSettings
from hierfl.runtime.checkpoints import differences, identity_of, stored_identity
from hierfl.solvers import ZOHFL, FedAvg

ROWS = np.random.default_rng(0).standard_normal((3, 5, 2))
SCALE = 2.0


def declared(
    power: int = 2,
    rows: Any = ROWS,
    weights: Any = "uniform",
    bound: float = 1.0,
    rho: float = 0.5,
    price: float = 3.0,
    function: Callable[..., Any] = lambda v: jnp.sum(v**2),
    scope: str = "client",
    sense: type = hf.Minimize,
) -> hf.Problem:
    x, y, u = cp.Variable(2), cp.Variable(2), hf.Sample(2)  # of names that CVXPY gives, others each time
    radius, cost = hf.ClientParameter(nonneg=True), cp.Parameter(value=price)
    term = cp.power(cp.norm(y), power) + hf.Function(function, x) + cost * cp.sum(x)
    clients = [hf.Client({u: own}, {radius: rho + i}) for i, own in enumerate(rows)]
    return hf.Problem(
        sense(clients=term),
        hf.ArgMin(y, hf.E(cp.sum_squares(y - u)) + cp.sum_squares(y - x), [cp.norm(y) <= 9], scope=scope),
        [cp.abs(x) <= bound, cp.norm(x) <= radius],
        hf.Federation(clients, weights=weights),
    )


def told(solver: Any = None, problem: hf.Problem | None = None, **settings: Any) -> list[str]:
    """What differs from the run as it is declared above."""
    before = identity_of(declared().compile(), ZOHFL(), RunSettings())
    now = identity_of((problem or declared()).compile(), solver or ZOHFL(), RunSettings(**settings))
    return list(differences(stored_identity(before), now))


def test_the_same_declared_again_is_the_same() -> None:
    assert told() == []


CHANGED = ROWS + np.array([0, 1e-9, 0])[:, None, None]

DIFFERENT: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a term": (lambda: {"problem": declared(power=3)}, "the clients' term"),
    "a constant of X": (lambda: {"problem": declared(bound=1.5)}, "the constraints on x"),
    "the data of a client": (lambda: {"problem": declared(rows=CHANGED)}, "the data of .* of client 1"),
    "a client less": (
        lambda: {"problem": declared(rows=ROWS[:2])},
        r"the number of clients \(3 in the checkpoint, 2 now",
    ),
    "weights": (lambda: {"problem": declared(weights=[1, 2, 1])}, "the clients' weights"),
    "client parameters": (lambda: {"problem": declared(rho=0.6)}, "the values of .* of clients 0, 1, 2"),
    "a parameter": (lambda: {"problem": declared(price=4.0)}, r"the value of .* \(3.0 in the checkpoint, 4.0 now\)"),
    "code": (lambda: {"problem": declared(function=lambda v: jnp.sum(v**4))}, "the clients' term"),
    "the solver": (lambda: {"solver": FedAvg()}, r"the solver \(ZOHFL\(\) in the checkpoint, FedAvg\(\) now\)"),
    "a setting": (
        lambda: {"solver": ZOHFL(0.2)},
        r"the solver \(ZOHFL\(\) in the checkpoint, ZOHFL\(smoothing=0.2\) now",
    ),
    "the seed": (lambda: {"seed": 1}, r"the seeds \(\[0\] in the checkpoint, \[1\] now\)"),
    "rounds": (lambda: {"rounds": 400}, r"rounds \(500 in the checkpoint, 400 now\)"),
    "blocks": (lambda: {"evaluate_every": 5}, "evaluate_every"),
    "precision": (lambda: {"runtime": hf.runtime.InProcess(precision="single")}, "the runtime"),
    "metrics": (lambda: {"metrics": {"size": len}}, "the names of the metrics"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_is_named(what: str) -> None:
    changed, expected = DIFFERENT[what]
    found = told(**changed())
    assert any(re.search(expected, line) for line in found), found


def test_what_a_run_may_be_resumed_with() -> None:
    assert not told(time_limit=3, tolerance=0.1, communication_limit=1e6, callback=print, progress=False)


def test_how_sites_are_reached_is_no_part_of_a_run() -> None:
    def identity(**settings: Any) -> dict[str, Any]:
        runtime = hf.runtime.Dask(**settings)
        return identity_of(declared().compile(), ZOHFL(), RunSettings(runtime=runtime))

    before = stored_identity(identity(scheduler="tls://old:1"))
    again = {"scheduler": "tls://new:2", "timeout": 600.0, "minimum": 3, "patience": 5.0}
    assert not list(differences(before, identity(**again)))
    assert "the runtime" in next(differences(before, identity(**again, largest=10.0)))


def test_another_version_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierfl.runtime.checkpoints.VERSION", "0.0.1")
    before = stored_identity(identity_of(declared().compile(), ZOHFL(), RunSettings()))
    monkeypatch.undo()
    assert "the version of hierfl (0.0.1 in the checkpoint" in next(
        differences(before, identity_of(declared().compile(), ZOHFL(), RunSettings()))
    )


def test_schedules_and_starts_are_compared_by_their_numbers(tmp_path: Path) -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)))

    def solve(step: Callable[[int], float], **settings: Any) -> hf.Result:
        return problem.solve(FedAvg(step), rounds=10, progress=False, checkpoint=tmp_path, **settings)

    solve(lambda r: 0.1 / (r + 1), x0=[1.0, 2.0])
    solve(lambda r: 0.1 / (1 + r), x0=[1.0, 2.0], resume=True)
    with pytest.raises(hf.CheckpointError, match="the schedules of the solver"):
        solve(lambda r: 0.1 / (r + 2), x0=[1.0, 2.0], resume=True)
    with pytest.raises(hf.CheckpointError, match="the start"):
        solve(lambda r: 0.1 / (r + 1), x0=[1.0, 2.5], resume=True)

    def steps(count: Callable[[int], int], **settings: Any) -> hf.Result:  # a constant of the program, and no table
        return problem.solve(FedAvg(0.1, local_steps=count), rounds=10, progress=False, checkpoint=tmp_path / "steps", **settings)

    steps(lambda r: 1)
    steps(lambda r: 3 - 2, resume=True)
    with pytest.raises(hf.CheckpointError, match="the schedules of the solver"):
        steps(lambda r: 7, resume=True)


# --- marks -----------------------------------------------------------------------------------------------------------


def power_of(exponent: int) -> Callable[[float], float]:
    def raised(value: float) -> float:
        return SCALE * value**exponent

    return raised


SAME_AND_OTHER: list[tuple[Any, Any, Any]] = [
    (np.arange(3), np.arange(3), np.arange(3.0)),
    ({"a": [1, (2, None)]}, {"a": [1, (2, None)]}, {"a": [1, (2, 0)]}),
    (power_of(2), power_of(2), power_of(3)),
    (functools.partial(max, 1), functools.partial(max, 1), functools.partial(max, 2)),
    (lambda v, n=1: v in {"a", "b", n}, lambda v, n=1: v in {"a", "b", n}, lambda v, n=2: v in {"a", "b", n}),
    (scipy.stats.norm(1, 2), scipy.stats.norm(1, 2), scipy.stats.norm(1, 3)),
    (*(scipy.stats.rv_discrete(values=([0, 1], [0.5, 0.5]))() for _ in range(2)), scipy.stats.rv_discrete(values=([0, 2], [0.5, 0.5]))()),
    (*(scipy.stats.multivariate_normal(np.zeros(2)) for _ in range(2)), scipy.stats.multivariate_normal(np.ones(2))),
    (range(3), range(3), range(4)),
    (jnp.arange(3), np.asarray(jnp.arange(3)), jnp.arange(4)),
    (jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.bfloat16), jnp.zeros(3, jnp.bfloat16)),
    (cp.Variable(2)[0] + 1, cp.Variable(2, name="x")[0] + 1, cp.Variable(2)[1] + 1),
    (cp.Variable(2, nonneg=True), cp.Variable(2, nonneg=True), cp.Variable(2)),
    (cp.Variable(2) <= 1, cp.Variable(2) <= 1, cp.Variable(2) == 1),
    (*(cp.perspective(f(cp.Variable()), cp.Variable(nonneg=True)) for f in (cp.square, cp.square, cp.abs)),),
]


@pytest.mark.parametrize("place", range(len(SAME_AND_OTHER)))
def test_marks_are_of_values(place: int) -> None:
    value, same, other = map(content_mark, SAME_AND_OTHER[place])
    assert value == same != other


def test_one_variable_is_not_two() -> None:
    x, z = cp.Variable(2), cp.Variable(2)
    assert content_mark([x + z, x]) != content_mark([x + z, z]) != content_mark([x + x, x])


def test_a_function_that_calls_itself_and_a_value_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(n: int) -> int:
        return n if n < 1 else down(n - 1)

    assert content_mark(down) == content_mark(down)
    before = content_mark(power_of(2))
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert content_mark(power_of(2)) != before


def test_marks_are_the_same_in_another_process() -> None:
    program = (
        "import sys\n"
        f"from {__name__} import declared, identity_of, RunSettings, ZOHFL\n"
        "print([part.mark for part in identity_of(declared().compile(), ZOHFL(), RunSettings()).values()])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    here = [part.mark for part in identity_of(declared().compile(), ZOHFL(), RunSettings()).values()]
    assert done.stdout.strip() == str(here), done.stderr

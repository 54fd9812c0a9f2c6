"""Step sizes and local steps as numbers, ``Decay`` and callables of the round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL, Decay, Exact, FedAvg, FedRZO, ImplicitGradient, ProjectedSGD
from hierfl.solvers.parts.step_schedules import settings_key, tabulate, tabulate_steps


def test_a_schedule_of_ones_own_is_asked_itself() -> None:
    class Late(Decay):
        def __call__(self, r: int) -> float:
            return super().__call__(r + 1)

    def listed(r: int) -> float:
        return listed.table[r]

    listed.table = [0.3, 0.2, 0.1]
    assert tabulate(Late(1.0, 1.0), 3, "step_size").tolist() == [1 / 2, 1 / 3, 1 / 4]
    assert tabulate(listed, 3, "step_size").tolist() == [0.3, 0.2, 0.1]


@pytest.mark.parametrize("steps", [3, np.array(3), np.float32(3)])
def test_one_number_of_steps_is_everybody_s(steps: Any) -> None:
    assert tabulate_steps(steps, 2, 5).tolist() == [[3], [3]]


@pytest.mark.parametrize("steps", [1e19, 1e300, lambda r: 10.0 ** (10 * r), [3, 1e19]])
def test_more_steps_than_anybody_waits_for_are_refused(steps: Any) -> None:
    with pytest.raises(hf.SettingError, match=r"steps of ProjectedSGD=1e\+.*: at most 10,000,000 steps"):
        tabulate_steps(steps, 3, 2, "steps of ProjectedSGD")


@pytest.mark.parametrize(
    "make",
    [lambda lower: ZOHFL(lower=lower), lambda lower: FedRZO(lower=lower), lambda lower: ImplicitGradient(lower=lower)],
)
@pytest.mark.parametrize("lower", [Exact, "Exact"])
def test_a_lower_solver_is_an_instance(make: Any, lower: Any) -> None:
    with pytest.raises(hf.SettingError, match=r"a lower-level solver such as Exact\(\)"):
        make(lower)


def test_an_error_of_the_callable_is_the_users_to_see() -> None:
    with pytest.raises(ZeroDivisionError):
        tabulate(lambda r: 1 / r, 3, "step_size")


# --- Equal settings have equal keys, others have others.


def rising(r: int) -> float:
    return r / 10


SETTINGS: list[Any] = [
    lambda: FedAvg(0.1),
    lambda: FedAvg(0.2),
    lambda: FedAvg(Decay(0.1)),
    lambda: FedAvg(rising),
    lambda: FedAvg(0.1, [1, 2]),
    lambda: FedAvg(0.1, [2, 1]),
    lambda: FedAvg(0.1, np.array([1, 2])),
    lambda: FedAvg(0.1, np.array([1.0, 2.0])),
    lambda: ZOHFL(lower=ProjectedSGD(steps=[1, 2])),
    lambda: ZOHFL(lower=ProjectedSGD(steps=[1, 3])),
    lambda: ZOHFL(lower=Exact()),
    lambda: {"a": [1]},
    lambda: {"a": [2]},
]


@pytest.mark.parametrize("make", SETTINGS)
def test_keys(make: Any) -> None:
    key = settings_key(make())
    assert key == settings_key(make()) and hash(key) == hash(settings_key(make()))
    assert sum(settings_key(other()) == key for other in SETTINGS) == 1

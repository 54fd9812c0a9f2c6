"""Equal settings have equal keys, others have others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hierfl.solvers import ZOHFL, Decay, Exact, FedAvg, ProjectedSGD
from hierfl.solvers.parts.step_schedules import settings_key


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


def test_others_are_their_own_keys() -> None:
    mine = object()
    assert settings_key(mine) is mine
    assert settings_key(lambda r: r) != settings_key(lambda r: r)

"""The minimax example ends at its saddle point, which another formula than its own gives."""

from __future__ import annotations

import numpy as np
import pytest

from examples.minimax_federation import LAMBDA, declared, drawn, main


def test_fednest_goes_to_the_saddle_point(capsys: pytest.CaptureFixture[str]) -> None:
    t, b = drawn(20)
    x = declared(t, b).implicit.gradient(np.zeros(10))  # f is quadratic: -grad f(0) = mean t mean b
    np.testing.assert_allclose(-x, t.mean() * b.mean(axis=0), atol=1e-12)
    assert LAMBDA == 0.1
    main(clients=20, rounds=120)
    lines = capsys.readouterr().out.splitlines()
    away = {line.split()[0]: float(line.split("=")[1].split(",")[0]) for line in lines[1:]}
    assert away["FedNest"] < 1e-8 and away["LocalSGDA"] > 1e-3

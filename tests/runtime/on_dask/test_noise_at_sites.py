"""Noise on a Dask cluster: what is on the wire is the noised message, and no site answers anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime import GaussianNoise
from hierfl.runtime.sites.exchange import Exchange
from hierfl.runtime.sites.parcels import Answered
from hierfl.solvers import FedAvg
from tests.runtime.on_dask.test_dask_runtime import START, Heard, clients_alone, words


@pytest.mark.slow
def test_what_crosses_is_noised(cluster: hf.runtime.Dask, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, solver = clients_alone(), FedAvg(step_size=0.1, local_steps=1, batch_size=None)
    settings: dict[str, Any] = {"rounds": 4, "x0": START, "seed": 5, "progress": False}
    answers: list[Answered] = []
    received = Exchange.note_received

    def noted(exchange: Exchange, site: str, step: str, message: Any, size: int) -> None:
        answers.extend([message] if isinstance(message, Answered) else [])
        received(exchange, site, step, message, size)

    monkeypatch.setattr(Exchange, "note_received", noted)
    problem.solve(solver, runtime=cluster, **settings | {"rounds": 1})
    plain = np.concatenate([answer.payload for answer in answers])
    told = np.concatenate([answer.monitor["value"] for answer in answers])
    expected = []
    for client in problem.federation.clients:
        rows = next(iter(client.samples.values()))
        expected.append(-0.1 * 2 * rows.T @ (rows @ START - 1) / len(rows))
    np.testing.assert_allclose(np.sort(plain, axis=0), np.sort(expected, axis=0), atol=1e-12)

    first: list[np.ndarray] = []
    object.__setattr__(cluster, "noise", GaussianNoise(clip=1.0, multiplier=3.0))
    heard = Heard(monkeypatch)
    try:
        for _ in range(2):
            answers.clear()
            result = problem.solve(solver, runtime=cluster, **settings)
            first.append(np.concatenate([answer.payload for answer in answers[:3]]))
            privacy = result.settings["privacy"]
            assert privacy["released"] == privacy["releases"] == 4 and len(answers) == 3 * 4
            assert not any(np.any(answer.monitor["value"]) or answer.seconds for answer in answers)
    finally:
        object.__setattr__(cluster, "noise", None)
    raw = b"".join(heard.parts)
    assert words(first[0])[0] in raw  # what is looked for would be found
    assert not [word for word in words(plain) + words(told) if word in raw]
    assert np.all(first[0] != first[1])

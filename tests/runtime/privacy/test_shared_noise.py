"""Noise that sites share under masks: its size in the mean, what a site may tell, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import hierfl as hf
from hierfl.runtime import Delayed, GaussianNoise, PairwiseMasks
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder, SharedNoise, clipped, discrete_gaussian, in_whole
from hierfl.runtime.privacy.pairwise_masks import MaskOrder
from hierfl.runtime.sites.site import SiteRules
from hierfl.solvers import FedAvg
from tests.runtime.privacy.test_masked_numbers import epsilon_of

CLIENTS, SIZE = 8, 400
ROWS = np.random.default_rng(3).standard_normal((CLIENTS, 2, SIZE))
SETTINGS: dict[str, Any] = {"rounds": 1, "x0": np.zeros(SIZE), "progress": False}
SOLVER = FedAvg(step_size=0.1, local_steps=1, batch_size=None)


@pytest.fixture(scope="module")
def problem() -> hf.Problem:
    x, u = cp.Variable(SIZE, name="x"), hf.Sample(SIZE, name="u")
    federation = hf.Federation([hf.Client({u: rows}) for rows in ROWS])
    return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=federation)


def runtime(noise: GaussianNoise, least: int = 5) -> Delayed:
    return Delayed([1.0] * CLIENTS, noise=noise, masks=PairwiseMasks(least))


def test_the_mean_carries_the_noise_of_one_message(problem: hf.Problem) -> None:
    moves = 0.2 * ROWS.mean(axis=1)
    mean = np.mean([move * min(1.0, 1 / np.linalg.norm(move)) for move in moves], axis=0)
    shared = problem.solve(SOLVER, runtime=runtime(GaussianNoise(1.0, 2.0, shared=True, colluding=1)), **SETTINGS)
    error = shared.iterate - mean
    stated = 2.0 / CLIENTS * np.sqrt(CLIENTS / (5 - 1))  # of eight sites, as much as four honest ones have to bring
    assert np.std(error) == pytest.approx(stated, rel=6 / np.sqrt(2 * SIZE))
    assert abs(np.mean(error)) < 6 * stated / np.sqrt(SIZE)
    alone = problem.solve(SOLVER, runtime=runtime(GaussianNoise(1.0, 2.0)), **SETTINGS)
    assert np.std(alone.iterate - mean) == pytest.approx(2.0 / np.sqrt(CLIENTS), rel=6 / np.sqrt(2 * SIZE))


def test_what_the_result_tells(problem: hf.Problem) -> None:
    noise = GaussianNoise(1.0, 4.0, shared=True, colluding=2)
    results = [problem.solve(SOLVER, runtime=runtime(noise), **SETTINGS | {"rounds": 3}) for _ in range(2)]
    told = results[0].settings["privacy"]
    assert told["epsilon"] == epsilon_of(4.0, 3, 1e-5, shared=True) and told["released"] == told["releases"] == 3
    assert told["relation"].startswith("central, of each client") and "2 colluding sites at most" in told["relation"]
    masks = results[0].settings["masks"]
    assert masks["rounding_at_most"] == pytest.approx(CLIENTS * masks["resolution"])  # each client's message, towards zero
    assert masks["sums"] == 3 and np.isnan(results[0].history["objective"]).all()
    assert np.all(results[0].trajectory["x"][1] != results[1].trajectory["x"][1])


@settings(max_examples=200, deadline=None)
@given(arrays(float, st.integers(1, 30), elements=st.floats(-1e3, 1e3)), st.floats(1e-2, 1e2), st.floats(1e-3, 1.0))
def test_whole_messages_are_no_longer_than_the_sensitivity_says(message: np.ndarray, clip: float, share: float) -> None:
    numbers = in_whole(clipped(message, clip), share, 40)
    length = sum(int(number) ** 2 for number in numbers)
    assert length <= (Fraction(clip) * Fraction(share) * 2**40) ** 2


def test_the_sum_of_discrete_gaussians_has_the_deviation_of_their_squares() -> None:
    total = sum(discrete_gaussian(np.full(20_000, 7), 1500.0) for _ in range(4)) - 28
    assert total.std() == pytest.approx(3000.0, rel=6 / np.sqrt(40_000))
    assert abs(total.mean()) < 6 * 3000.0 / np.sqrt(20_000)


def test_a_site_adds_fresh_noise_to_every_attempt_and_counts_questions() -> None:
    noise = SharedNoise(
        NoiseOrder(1.0, 1.0, 1e-5, 2, "a run", True, 1), "step", MaskOrder(3, 40, "a run"), np.full(4, 0.25)
    )
    assert noise.part == pytest.approx(2.0**40 * 0.25 / np.sqrt(2))
    payload = np.zeros((2, 3))
    first, second = (noise.summed([0, 1], ["x", "x"], payload, 1) for _ in range(2))
    assert first.shape == (4,) and first[3] == second[3] == 0 and np.all(first[:3] != second[:3])
    assert noise.releases.counts == {0: 1, 1: 1}
    noise.summed([0, 1], ["y", "y"], payload, 1)
    with pytest.raises(hf.SiteError, match="have sent the 2 messages"):
        noise.summed([1], ["z"], payload[:1], 1)


def test_a_site_adds_no_noise_to_a_sum_that_could_go_round() -> None:
    """A server that chose so large a clip was told whether the sum goes round, which changes it by more than the noise hides."""
    order, shares = NoiseOrder(192.0, 1.0, 1e-5, 2, "run", True, 1), np.full(8, 1 / 8)
    with pytest.raises(hf.SettingError, match="too large for them, take fewer"):
        SharedNoise(order, "local_steps", MaskOrder(5, 56, "run"), shares)
    assert SharedNoise(order, "local_steps", MaskOrder(5, 40, "run"), shares).part > 1e3


def test_what_does_not_fit_is_refused(problem: hf.Problem) -> None:
    shared = GaussianNoise(1.0, 1.0, shared=True)
    for given_noise, masks, said in (
        (shared, None, "sees sums alone"),
        (GaussianNoise(1.0, 1.0, shared=True, colluding=5), PairwiseMasks(5), "take a larger least"),
        (shared, PairwiseMasks(5, bits=10), "take 4 more bits"),
        (GaussianNoise(10.0, 1.0, shared=True), PairwiseMasks(5, bits=56), "too large for them, take fewer"),
    ):
        with pytest.raises(hf.SettingError, match=said):
            given_runtime = Delayed([1.0] * CLIENTS, noise=given_noise, masks=masks)
            problem.solve(SOLVER, runtime=given_runtime, **SETTINGS)
    for wrong, said in (({"shared": 1}, "True or False"), ({"colluding": -1}, "from 0 on")):
        with pytest.raises(hf.SettingError, match=said):
            GaussianNoise(1.0, 1.0, **wrong)


def test_an_owner_who_asks_for_noise_alone_refuses_a_part_of_it(
    problem: hf.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierfl.runtime import site_runtime

    shared = runtime(GaussianNoise(1.0, 2.0, shared=True))
    monkeypatch.setattr(site_runtime, "SiteRules", lambda **given: SiteRules(min_noise=2.0, **given))
    with pytest.raises(hf.SiteError, match="the run has none"):
        problem.solve(SOLVER, runtime=shared, **SETTINGS)
    monkeypatch.setattr(site_runtime, "SiteRules", lambda **given: SiteRules(min_noise=2.0, min_sum=5, **given))
    problem.solve(SOLVER, runtime=shared, **SETTINGS)

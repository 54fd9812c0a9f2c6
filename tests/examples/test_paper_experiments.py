"""The published experiments, small: what their tables must show."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import fair_classification
import hyperparameter_learning
import reporting
import stackelberg_cournot

pytestmark = [pytest.mark.slow, pytest.mark.optimised]


@pytest.fixture(autouse=True)
def bundled_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIERFL_DATA", raising=False)


def test_stackelberg_leader_reaches_the_optimum_with_a_solved_lower_level(tmp_path: Path) -> None:
    runs, (x, f) = stackelberg_cournot.main(["--steps", "20", "--figures", str(tmp_path)])
    assert x == pytest.approx(5.172161, abs=1e-3) and f == pytest.approx(-2.770521, abs=1e-5)
    exact, extragradient, published = runs
    assert exact.result.value - f < 1e-3 and extragradient.result.value - f < 1e-3
    assert published.result.value - f > 1.0
    assert [r.warned for r in runs] == [False, False, True]
    assert (tmp_path / "stackelberg_cournot.png").exists()


@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")  # its answers lag behind near the floor of x
def test_hyperparameters_are_learned(tmp_path: Path) -> None:
    (outcome,) = hyperparameter_learning.main(
        ["--rounds", "100", "--steps", "20", "--seeds", "2", "--figures", str(tmp_path)]
    )
    for result in outcome.results:
        assert 2.2 < result.value < 6.0 and np.all(result.x >= hyperparameter_learning.FLOOR - 1e-12)
        assert result.communication["lower_scalars_up"] > 0
    assert outcome.test_loss[:, -1].max() < 0.15
    assert (tmp_path / "hyperparameter_learning.png").exists()


@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
def test_fair_classification_lowers_the_worst_mixture(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    fair, plain = fair_classification.main(["--rounds", "200", "--steps", "20", "--figures", str(tmp_path)])
    assert np.sum(fair.result.y) == pytest.approx(1) and np.min(fair.result.y) >= 0
    assert fair.result.value < 0.95
    assert plain.class_losses[-1].mean() < fair.class_losses[-1].mean()
    assert "worst class" in capsys.readouterr().out
    assert (tmp_path / "fair_classification.png").exists()


def test_band_is_student_t() -> None:
    mean, width = reporting.band([[1.0, 4.0], [3.0, 4.0]])
    np.testing.assert_allclose(mean, [2.0, 4.0])
    np.testing.assert_allclose(width, [12.7062047 * np.sqrt(2) / np.sqrt(2), 0.0], rtol=1e-6)
    np.testing.assert_array_equal(reporting.band([[5.0]])[1], [0.0])

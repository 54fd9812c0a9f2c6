"""Lower levels of thousands of scalars over thousands of rows are left to iterations before they are canonicalised."""

from __future__ import annotations

import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.lower_level.methods import parametric_program
from hierfl.models import ClassificationData, heterogeneous_classification


def test_a_large_learning_level_is_refused_by_its_sizes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def canonicalised(structure: object) -> None:
        raise AssertionError("CVXPY canonicalised it, which takes minutes for models of thousands of weights")

    monkeypatch.setattr(parametric_program, "level_solver", canonicalised)
    rng = np.random.default_rng(0)
    data = ClassificationData(rng.integers(0, 255, (5000, 784), dtype=np.uint8), np.arange(5000) % 10, scale=255.0)
    exact = heterogeneous_classification(data, clients=2, scheme=hf.IID()).compile(progress=False).exact
    verdict = parametric_program.ParametricProgram.verdict(exact.method.structure)
    rows = 5000 * 9 // 10 * 7 // 10 // 2  # a client's, of which each has a number at the least
    assert not verdict.applies and f"here {rows:,} or more, for 7,840 scalars of y" in verdict.why

"""Lower levels drawn at random, against CVXPY."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.compiler.parametric.random_declarations import draw, faults


@pytest.mark.parametrize("seed", [*range(8), 40, 100])  # of the last two interior points leave NaN beside a rough answer
def test_a_declaration_drawn_at_random_is_answered_right(seed: int) -> None:
    assert not faults(draw(seed), Counter())

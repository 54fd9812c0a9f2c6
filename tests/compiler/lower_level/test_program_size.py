"""Exact values are short programs, whatever the set and the method: XLA's time goes with their equations."""

from __future__ import annotations

import pytest

from tests.benchmarks.program_size import BAR, CATALOGUE, evaluations

ON_HOST = {  # have no exact projection, and so a program on the host alone
    "polyhedron with a ball",
    "polyhedron with a ball that moves",
    "simplex cut by an l1 ball",
    "ball with a halfspace",
    "box with a ball and a halfspace",
    "dispatch in a ball",
    "logistic over a polyhedron with a ball",
    "equilibrium over a polyhedron with a ball",
    "equilibrium over an intersection",
}


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in ON_HOST])
def test_an_exact_value_is_a_short_program(name: str) -> None:
    sizes = dict(evaluations(CATALOGUE[name]()))
    assert max(sizes.values()) <= BAR, sizes

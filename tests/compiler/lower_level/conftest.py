"""These tests are of the methods inside compiled programs: problems small enough for the host engine are theirs as well."""

from __future__ import annotations

import pytest

from hierfl.compiler.lower_level.methods.method import Verdict
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram


@pytest.fixture(autouse=True)
def _without_the_host_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler choose among the other methods."""
    monkeypatch.setattr(ParametricProgram, "verdict", classmethod(lambda cls, structure: Verdict(False, "is left out here")))

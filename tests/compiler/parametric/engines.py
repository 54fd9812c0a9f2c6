"""The engines of the lower level that the tests of this folder run by, and how near answers are to be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import hierfl as hf
from hierfl.compiler.lower_level.choice import METHODS
from hierfl.compiler.lower_level.exact_lower import ExactLower

Engine = Callable[[hf.Problem], hf.Problem]
NEAR = 1e-9  # relative to 1 + the largest entry


def by_default(problem: hf.Problem) -> hf.Problem:
    """The problem as it is: small ones are answered on the host."""
    return problem


def traced(problem: hf.Problem) -> hf.Problem:
    """The problem by the first method that is a traced program, as with many owners: sets are projected on by the host still."""
    compiled = problem.compile()
    assert compiled.exact.method is not None
    structure = compiled.exact.method.structure
    name = next(name for name, method in METHODS.items() if name != "parametric program" and method.verdict(structure).applies)
    method = METHODS[name](structure, "a test asks for it")
    object.__setattr__(compiled, "exact", ExactLower(compiled.exact.oracles, method, method))
    return problem


def compiled(problem: hf.Problem) -> hf.Problem:
    """The same with nothing on the host, as where y is large."""
    lower_set = traced(problem).compile().lower_set
    if lower_set is not None:
        lower_set.__dict__["on_host"] = None  # what the cached property would hold
    return problem


ENGINES: dict[str, Engine] = {"default": by_default, "traced": traced, "compiled": compiled}
COMPILING = {"traced", "compiled"}  # engines that compile new problems for seconds: for tests marked ``every_engine``
FEW = 3  # random problems for those


def near(found: object, expected: object, bar: float = NEAR) -> None:
    """Require an answer equal to another up to the bar."""
    expected = np.asarray(expected, float)
    found = np.asarray(found, float).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bar * (1 + np.abs(expected).max(initial=0)))

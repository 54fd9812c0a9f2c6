"""Every public name has an example, and each example prints what its docstring says."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
import hierfl.models
import hierfl.solvers
import hierfl.study
import hierfl.testing

PAGES = Path(__file__).parents[1] / "docs" / "api"
MODULES = (hierfl, hierfl.solvers, hierfl.models, hierfl.study, hierfl.testing)


def documented() -> dict[str, object]:
    """What the reference shows, and what is public, by full name: classes and functions, but errors, whose examples are on the page on troubleshooting."""
    found = {f"{m.__name__}.{name}": getattr(m, name) for m in MODULES for name in m.__all__}
    for page in PAGES.glob("*.rst"):
        for full in re.findall(r"^\.\. auto(?:class|function):: (hierfl\.[\w.]+)", page.read_text(), flags=re.MULTILINE):
            module, _, name = full.rpartition(".")
            found[full] = getattr(importlib.import_module(module), name)
    of_errors = vars(hierfl.errors).values()
    return {full: one for full, one in sorted(found.items()) if callable(one) and one not in of_errors}


@pytest.mark.parametrize("full", documented())
def test_the_example_prints_what_it_says(full: str) -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), lower=hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    )
    names = {"cp": cp, "np": np, "hf": hf, "x": x, "y": y, "problem": problem}
    text = inspect.getdoc(documented()[full]) or ""
    example = doctest.DocTestParser().get_doctest(text, names, full, None, None)
    assert example.examples, f"{full} has no example"
    said: list[str] = []
    doctest.DocTestRunner().run(example, out=said.append)
    assert not said, "".join(said)

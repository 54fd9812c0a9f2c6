"""One suite for every engine of the lower level: a test that takes ``engine`` is run by each."""

from __future__ import annotations

import pytest

from tests.compiler.parametric.engines import COMPILING, ENGINES, FEW, Engine


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Makes a problem answer by one of the engines."""
    return ENGINES[request.param]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Engines that compile run what is marked for them, and few of the random problems."""
    left_out = [item for item in items if _left_out(item, getattr(getattr(item, "callspec", None), "params", {}))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _left_out(item: pytest.Item, parameters: dict[str, object]) -> bool:
    if parameters.get("engine") not in COMPILING:
        return False
    seed = parameters.get("seed", 0)
    return item.get_closest_marker("every_engine") is None or (isinstance(seed, int) and seed >= FEW)

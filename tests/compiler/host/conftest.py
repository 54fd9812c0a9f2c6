"""One suite for every engine of the lower level: a test that takes ``engine`` is run by each."""

from __future__ import annotations

import pytest

from tests.compiler.host.engines import COMPILING, ENGINES, FEW, Engine


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Makes a problem answer by one of the engines."""
    return ENGINES[request.param]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most random problems where each would be compiled."""
    left_out = [item for item in items if _one_of_many(getattr(getattr(item, "callspec", None), "params", {}))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _one_of_many(parameters: dict[str, object]) -> bool:
    seed = parameters.get("seed", 0)
    return parameters.get("engine") in COMPILING and isinstance(seed, int) and seed >= FEW

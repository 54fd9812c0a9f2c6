"""Shared fixtures: double precision for tests that call traced code directly, and nothing kept from test to test."""

import itertools
from collections.abc import Iterator

import jax
import matplotlib.pyplot as plt
import pytest

_COUNT = itertools.count(1)
_KEEP = 40  # tests between two clearings: thousands of compiled programs would fill the memory of a small machine


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit JAX types, as hierfl's public entry points enable them."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def programs() -> Iterator[list[str]]:
    """An entry for every program that XLA compiles from now on."""
    compiled: list[str] = []

    def heard(event: str, seconds: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield compiled
    jax.monitoring.unregister_event_duration_listener(heard)


@pytest.fixture(autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """Compiled programs of a few tests only."""
    yield
    if next(_COUNT) % _KEEP == 0:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    """Matplotlib warns of more than twenty open figures, which the next test would see as an error."""
    yield
    plt.close("all")

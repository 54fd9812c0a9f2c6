"""Shared fixtures: double precision for tests that call traced code directly."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit JAX types, as hierfl's public entry points enable them."""
    with jax.enable_x64(True):
        yield

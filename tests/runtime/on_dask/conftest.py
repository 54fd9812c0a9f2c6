"""One cluster for all tests of sites: its processes take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hierfl as hf


@pytest.fixture(scope="package")
def cluster() -> Iterator[hf.runtime.Dask]:
    with hf.runtime.Dask(sites=3, timeout=120.0) as runtime:
        yield runtime

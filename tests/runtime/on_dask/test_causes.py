"""What a refused connection is said to be about."""

from __future__ import annotations

import ssl

import pytest
from tornado.iostream import StreamClosedError

from hierfl.runtime.on_dask.site_process import last_cause


@pytest.mark.parametrize("error", [ssl.SSLError("expired"), StreamClosedError(), ConnectionResetError(104, "reset")])
def test_a_certificate_is_named_where_it_may_be_the_cause(error: Exception) -> None:
    outer = OSError("cannot connect")
    outer.__cause__ = error
    assert last_cause(outer).startswith(f"{type(error).__name__}: ") and "certificate" in last_cause(outer)


def test_nobody_listening_is_no_matter_of_certificates() -> None:
    assert (
        last_cause(ConnectionRefusedError(111, "Connection refused"))
        == "ConnectionRefusedError: [Errno 111] Connection refused."
    )

"""Simulated sites whose answers are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hierfl.runtime.site_runtime import _DelayedLinks
from hierfl.runtime.sites.letters import Letter
from hierfl.runtime.sites.parcels import Lost


def losing(monkeypatch: pytest.MonkeyPatch, lost: Callable[[str, Any], bool]) -> list[Letter]:
    """The answers of sites that are lost, as they are when they come too late."""
    late, exchange = list[Letter](), _DelayedLinks.exchange

    def lossy(links: _DelayedLinks, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        answers = exchange(links, parcels, timeout)
        for site, parcel in parcels.items():
            if lost(site, Letter.from_bytes(parcel).words):
                late.append(Letter.from_bytes(answers[site]))  # type: ignore[arg-type]
                answers[site] = Lost("no answer")
        return answers

    monkeypatch.setattr(_DelayedLinks, "exchange", lossy)
    return late

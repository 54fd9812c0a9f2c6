"""The page on reproductions names them all."""

from __future__ import annotations

from pathlib import Path

from examples.reproduce.__main__ import REPRODUCTIONS


def test_the_page_lists_every_reproduction() -> None:
    page = (Path(__file__).parents[3] / "docs/reproductions.md").read_text()
    for one in REPRODUCTIONS.values():
        assert f"| `{one.name}` | {one.about} | {one.source} |" in page

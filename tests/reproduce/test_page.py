"""The page on reproductions names them all."""

from __future__ import annotations

from pathlib import Path

from hierfl.reproduce.listing import every_reproduction


def test_the_page_lists_every_reproduction() -> None:
    page = (Path(__file__).parents[2] / "docs/reproductions.md").read_text()
    for one in every_reproduction():
        assert f"| `{one.name}` | {one.about} | {one.source} |" in page

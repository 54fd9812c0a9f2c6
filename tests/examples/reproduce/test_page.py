"""The page on reproductions names them all."""

from __future__ import annotations

from pathlib import Path

from examples.reproduce.__main__ import REPRODUCTIONS
from examples.reproduce.conducting import in_markdown
from examples.reproduce.heterogeneous_records import TABLE
from examples.reproduce.kept_table import kept

PAGE = (Path(__file__).parents[3] / "docs/reproductions.md").read_text()


def test_the_page_lists_every_reproduction() -> None:
    for one in REPRODUCTIONS.values():
        assert f"| `{one.name}` | {one.about} | {one.source} |" in PAGE


def test_the_page_has_the_table_that_is_kept() -> None:
    ((_, rows),) = TABLE.tables(kept())
    assert in_markdown(rows) in PAGE


def test_every_table_and_figure_of_the_papers_has_its_row() -> None:
    printed = {"HFL": ("Figure", 3, "Table I"), "NN": ("Figure", 2, "Table 1", "Table 2"), "2S": ("Figure", 5, "Table 1", "Tables 2 and 3", "Table 4")}
    rows = [line for line in PAGE.splitlines() if line.startswith("| [")]
    for paper, (figure, count, *tables) in printed.items():
        for one in (*(f"{figure} {k}" for k in range(1, count + 1)), *tables):
            assert any(f"[{paper}] {one}" in row.split("|")[1] for row in rows), (paper, one)
    assert "not at hand" not in PAGE

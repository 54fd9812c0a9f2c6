"""What an installed hierfl contains."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_of_the_tree_is_installed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    inside = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "hierfl").rglob("__init__.py")}
    beside = {
        ".".join(("hierfl", *p.parent.relative_to(ROOT).parts))
        for folder in ("solvers", "models")
        for p in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == inside | beside

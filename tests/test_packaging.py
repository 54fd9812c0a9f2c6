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


def test_every_data_file_of_the_tree_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    files = (p for p in (ROOT / "hierfl").rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc"))
    inside: dict[str, list[str]] = {}
    for file in files:
        inside.setdefault(".".join(file.parent.relative_to(ROOT).parts), []).append(file.name)
    assert listed == inside

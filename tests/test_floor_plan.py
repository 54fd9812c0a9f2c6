"""The rules of the floor plan: which way imports go, how large folders and files are, that a name means one thing, where tests lie.

Imports are counted wherever they stand: at the top, in functions, and for types only.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).parents[1]
TOPS = ("hierfl", "solvers", "models")
BESIDE = ("solvers", "models")  # packages of hierfl that lie beside it in the tree
FACADES = {
    "hierfl",
    "hierfl.problem",
    "hierfl.result",
    "hierfl.runs",
    "hierfl.sweeping",
}  # may look up; nobody below knows them
CATALOGUES = {  # one family of sets or atoms, or one algorithm, a file
    Path("hierfl/projections"),
    Path("hierfl/atoms/families"),
    Path("solvers"),
}
LARGEST_CIRCLE, LARGEST_FOLDER, LONGEST_FILE, LONGEST_MEDIAN = 3, 15, 600, 250


def source_files() -> list[Path]:
    """All files of the package, by their places in the tree."""
    return sorted(path.relative_to(ROOT) for top in TOPS for path in (ROOT / top).rglob("*.py"))


def written_files() -> list[Path]:
    """Those that are more than the front of a package."""
    return [path for path in source_files() if path.stem != "__init__"]


def module_name(path: Path) -> str:
    """The name by which a file is imported."""
    parts = [*(["hierfl"] if path.parts[0] in BESIDE else []), *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    """What a file declares."""
    return ast.parse((ROOT / path).read_text())


def listing(culprits: Iterable[object]) -> str:
    """One a line."""
    return "\n  ".join(["", *map(str, culprits)])


# --- contracts ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package laid out as installed, which is how a checker of imports finds all of it."""
    folder = tmp_path_factory.mktemp("installed")
    no_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "hierfl", folder / "hierfl", ignore=no_caches)
    for name in BESIDE:
        shutil.copytree(ROOT / name, folder / "hierfl" / name, ignore=no_caches)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def checked(folder: Path) -> tuple[int, str]:
    """The exit status of ``lint-imports`` in a folder, and what it prints."""
    run = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
    done = subprocess.run([sys.executable, "-c", run], cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_imports_keep_the_contracts(installed: Path) -> None:
    status, printed = checked(installed)
    assert status == 0, printed


UPWARDS = {
    "at the top": "import hierfl.compiler\n",
    "for types only": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import hierfl.compiler\n",
    "when called": "def later() -> None:\n    import hierfl.compiler\n",
}


@pytest.mark.parametrize("where", UPWARDS)
def test_a_forbidden_import_breaks_the_contracts(where: str, installed: Path) -> None:
    intruder = installed / "hierfl/language/intruder.py"
    intruder.write_text(UPWARDS[where])
    status, printed = checked(installed)
    intruder.unlink()
    assert status != 0 and "BROKEN" in printed, printed
    assert "hierfl.language.intruder -> hierfl.compiler" in printed, printed


# --- circles -----------------------------------------------------------------------------------------------------------


def imported(name: str, path: Path, modules: set[str]) -> set[str]:
    """The package's modules that a module imports anywhere, or names in a string by which it is loaded."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    targets: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                targets.add(inner if inner in modules else origin)
        elif isinstance(node, ast.Call):
            texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            targets |= {text for text in texts if isinstance(text, str)}
    return (targets & modules) - {name}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of two or more modules."""
    names = sorted(arrows)
    places = {name: place for place, name in enumerate(names)}
    ends = np.array([(places[a], places[b]) for a in names for b in arrows[a]], int).reshape(-1, 2)
    graph = csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(names), len(names)))
    members = defaultdict(list)
    for name, label in zip(names, connected_components(graph, connection="strong")[1]):
        members[label].append(name)
    return [group for group in members.values() if len(group) > 1]


def test_circles_are_found_whatever_their_length() -> None:
    chain = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}
    assert sorted(circles(chain)) == [["a", "b", "c"], ["e", "f"]]


def test_no_circle_of_imports_is_large() -> None:
    files = {module_name(path): path for path in source_files()}
    arrows = {name: set() if name in FACADES else imported(name, path, set(files)) for name, path in files.items()}
    large = [group for group in circles(arrows) if len(group) > LARGEST_CIRCLE]
    assert not large, listing(f"{len(group)} modules import each other: {', '.join(group)}" for group in large)


# --- sizes -------------------------------------------------------------------------------------------------------------


def test_no_folder_is_crowded() -> None:
    inside = defaultdict(list)
    for path in written_files():
        inside[path.parent].append(path.stem)
    crowded = {f: stems for f, stems in inside.items() if len(stems) > LARGEST_FOLDER and f not in CATALOGUES}
    assert not crowded, listing(
        f"{folder}: {len(stems)} modules: {', '.join(stems)}" for folder, stems in crowded.items()
    )


def test_no_file_is_long() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in written_files()}
    faults = [f"{path}: {length} lines" for path, length in lengths.items() if length > LONGEST_FILE]
    middle = median(lengths.values())
    if middle > LONGEST_MEDIAN:
        faults.append(f"the median file has {middle:g} lines")
    assert not faults, listing(faults)


# --- names -------------------------------------------------------------------------------------------------------------


def shared_names(places: Iterable[tuple[str, Path]]) -> list[str]:
    """Names that stand in more than one place, with all of them."""
    holders = defaultdict(list)
    for name, path in places:
        holders[name].append(str(path))
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(holders.items()) if len(paths) > 1]


def test_a_name_of_a_module_stands_for_one_thing() -> None:
    shared = shared_names((path.stem, path) for path in written_files())
    assert not shared, listing(shared)


def test_a_name_of_a_class_stands_for_one_thing() -> None:
    classes = (
        (node.name, path)
        for path in source_files()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = shared_names(classes)
    assert not shared, listing(shared)


# --- tests -------------------------------------------------------------------------------------------------------------


def test_tests_lie_where_their_subjects_do() -> None:
    """Attacks go through several floors, and have a folder of their own."""
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path(), Path("security")}
    beside = (*BESIDE, "examples")
    astray = [
        f for f in folders if not ((ROOT / "hierfl" / f).is_dir() or (f.parts[0] in beside and (ROOT / f).is_dir()))
    ]
    assert not astray, listing(sorted(astray))


def test_nightly_tests_exist() -> None:
    """By file and function: pytest itself has no parameter of this name otherwise, and leaves nothing out."""
    lines = (ROOT / "tests/nightly.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    gone = [line for line in lines if " 1/" in line and line.split()[0] != "*" and not (ROOT / line.split()[0]).is_file()]
    assert not gone, listing(gone)
    named = [line.partition("[")[0].split("::") for line in lines if " 1/" not in line]
    lost = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert named and not lost, listing(lost)


def test_quick_tests_exist_and_touch_every_package() -> None:
    lines = (ROOT / "tests/quick.txt").read_text().splitlines()
    chosen = [Path(line.partition("::")[0]) for line in lines if line and not line.startswith("#")]
    faults = [f"{path} does not exist" for path in chosen if not (ROOT / path).exists()]
    named = [line.partition("[")[0].split("::") for line in lines if "::" in line]
    faults += [f"no {name} in {file}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    packages = {module_name(path).split(".")[1] for path in written_files() if path.parent != Path("hierfl")}
    faults += [f"no quick test of {name}" for name in sorted(packages - {path.parts[1] for path in chosen})]
    assert not faults, listing(faults)

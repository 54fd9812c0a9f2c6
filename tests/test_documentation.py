"""The site's pages, without building them: every page is reached, every public name is in the reference, every cell is Python."""

from __future__ import annotations

import ast
import contextlib
import io
import pickle
import re
import shlex
import traceback
from pathlib import Path

import pytest

import hierfl
import hierfl.models
import hierfl.solvers
import hierfl.study
import hierfl.testing
from hierfl.command.main import main
from hierfl.solvers import extend

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [path for path in sorted(DOCS.rglob("*")) if path.suffix in (".md", ".rst") and "_build" not in path.parts]
CELLS = re.compile(r"^(?:```|:::)(?:\{code-cell\} python|python)\n(.*?)^(?:```|:::)$", flags=re.DOTALL | re.MULTILINE)


def code_of(page: Path) -> list[str]:
    """The Python of a page, cells and listings, without the options of cells."""
    return [re.sub(r"^:\w+:.*\n", "", code, flags=re.MULTILINE) for code in CELLS.findall(page.read_text())]


def test_every_page_is_in_a_table_of_contents() -> None:
    reached = {DOCS / "index.md"}
    for page in PAGES:
        for listing in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), flags=re.DOTALL):
            names = [line for line in listing.split("\n") if line and not line.startswith(":")]
            found = [
                next(p for s in (".md", ".rst") if (p := (page.parent / f"{n}{s}").resolve()).exists()) for n in names
            ]
            reached.update(found)
    orphans = {page for page in PAGES if page.read_text().startswith("---\norphan: true")}
    assert set(PAGES) - orphans - reached == set()


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.rst"))
    documented = {name.rsplit(".", 1)[-1] for name in re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, flags=re.MULTILINE)}
    by_module = {name for name in vars(hierfl.errors) if "automodule:: hierfl.errors" in text}
    public = {*hierfl.__all__, *hierfl.solvers.__all__, *hierfl.models.__all__, *hierfl.study.__all__, *hierfl.testing.__all__} - {"errors"}
    assert (
        len(public - documented - by_module) < 10 and ".. public-names::" in text
    )  # which documents what has no section
    elsewhere = {
        name
        for name in documented
        if not any(hasattr(m, name) for m in (hierfl, hierfl.solvers, hierfl.models, hierfl.study, hierfl.testing))
    }
    assert elsewhere <= {*SHOWN, "errors"}


SHOWN = {  # what public calls return, and runtimes: documented under the names of their modules
    "CheckReport", "Dask", "Delayed", "DerivativeStatus", "Explanation", "Finding", "Flower", "GaussianNoise",
    "ImplicitFunction", "ImplicitLayer", "InProcess", "Inference", "PairwiseMasks", "Reference", "Regression",
    "Slice", "Surface", "Theorem", "Violation", "Violations",
}


def test_what_solvers_are_written_of_is_told() -> None:
    """Every name of ``hierfl.solvers.extend`` is in the page's table, and two solvers of ours need no others."""
    table = (DOCS / "extend" / "solver.md").read_text().split("## What there is to write one of")[1]
    told = {name for row in re.findall(r"^\| (`[^|]*) \|", table, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert told == {*extend.__all__}
    for ours in ("fedbio.py", "simfbo.py"):
        tree = ast.parse((DOCS.parent / "solvers" / ours).read_text())
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hierfl.")]
        names = {alias.name for node in froms if node.module != "hierfl.errors" for alias in node.names}
        assert names - {"BoundFedBiO", "FedBiO"} <= told


def test_every_class_of_error_and_warning_has_an_entry() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    told = {
        name for name, thing in vars(hierfl.errors).items() if isinstance(thing, type) and issubclass(thing, Exception)
    }
    assert told == set(re.findall(r"^## (\w+)$", page, flags=re.MULTILINE))


ENTRIES = {
    thing
    for thing in vars(hierfl.errors).values()
    if isinstance(thing, type) and issubclass(thing, (hierfl.HierflError, hierfl.HierflWarning))
}


@pytest.mark.parametrize("kind", sorted(ENTRIES, key=lambda kind: kind.__name__))
def test_every_error_and_warning_says_once_where_its_entry_is(kind: type[Exception]) -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    headings = re.findall(r"^## (.*)$", page, flags=re.MULTILINE)
    for one in (kind("what is wrong"), pickle.loads(pickle.dumps(kind("what is wrong"))), type("Own", (kind,), {})("")):
        if isinstance(one, hierfl.HierflError):
            assert str(one) in ("what is wrong", "")
            one.add_note("more")
            one.add_note("more")
            *others, last = one.__notes__
            assert others == ["more"]
        else:
            (last,) = re.findall(r"\((read more, .*)\)$", str(one))
        assert last == f"read more, in a terminal: hierfl docs {kind.__name__}" and kind.__name__ in headings


def test_a_traceback_ends_with_the_entry() -> None:
    try:
        hierfl.solvers.ZOHFL(smoothing=-1)
    except hierfl.SettingError as error:
        printed = traceback.format_exception(error)
    assert printed[-1] == "read more, in a terminal: hierfl docs SettingError\n" and "".join(printed).count("hierfl docs") == 1


def test_the_gallery_has_as_many_problems_as_it_is_said_to() -> None:
    count = len(list((DOCS / "gallery").glob("*.md"))) - 1
    names = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]
    for page in (DOCS / "index.md", DOCS / "gallery" / "index.md", DOCS.parent / "README.md"):
        (told,) = re.findall(r"(\w+teen|ten|eleven|twelve|twenty) problems", page.read_text().lower())
        assert told == names[count - 10], page


def test_every_cell_is_python() -> None:
    found = [(page, code) for page in PAGES for code in code_of(page)]
    assert len(found) > 40
    for page, code in found:
        ast.parse(code, filename=str(page))


def test_links_between_pages_lead_to_pages() -> None:
    for page in PAGES:
        assert "[](" not in page.read_text(), f"{page.name}: where pages are read as they are, a link without words is not seen"
        for target in re.findall(r"\]\(([^)#\s]+\.(?:md|rst))(?:#[\w-]+)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


# --- Every Python snippet of the README runs, in order, and prints what the README says; so does the site's example of
# a command.


README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
def test_snippets_print_what_the_readme_says() -> None:
    assert len(BLOCKS) == README.count("```python") == 2
    names: dict[str, object] = {}
    for code, expected in BLOCKS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        lines = [line for line in printed.getvalue().splitlines() if "━" not in line]
        assert [line.rstrip() for line in lines] == expected.rstrip("\n").splitlines()


def test_the_command_prints_what_its_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "guide" / "command_line.md").read_text()
    blocks = re.findall(r"```console\n\$ hierfl (inspect .*)\n((?:.*\n)*?)```", page)
    assert len(blocks) == 1
    for command, expected in blocks:
        assert main(shlex.split(command)) == 0
        assert capsys.readouterr().out == expected


def test_the_readmes_picture_and_files_exist() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(([^)#]+)\)|<img src=\"([^\"]+)\"", README):
        assert (root / "".join(target)).exists(), target

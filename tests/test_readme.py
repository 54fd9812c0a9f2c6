"""Every Python snippet of the README runs, in order, and prints what the README says; so does the site's example of a command."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from hierfl.command.main import main

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

"""Public names that no page of the reference has put into a section yet: none may be missing from it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

MODULES = ("hierfl", "hierfl.solvers", "hierfl.models")


def names_without_a_section(pages: Path) -> Iterator[str]:
    """Full names of what is public, and neither named on a page of the folder nor an error."""
    text = "\n".join(page.read_text() for page in sorted(pages.glob("*.rst")))
    named = {name.rsplit(".", 1)[-1] for name in re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, flags=re.MULTILINE)}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            thing = getattr(module, name)
            known = name in named or inspect.ismodule(thing) or inspect.getmodule(thing).__name__ == "hierfl.errors"  # type: ignore[union-attr]
            if not known:
                yield f"{module.__name__}.{name}"


class PublicNames(Directive):
    """The documentation of each of these names."""

    def run(self) -> list[nodes.Node]:
        """What autodoc makes of them."""
        lines: list[str] = []
        for full in names_without_a_section(Path(self.state.document.settings.env.srcdir) / "api"):
            module, _, name = full.rpartition(".")
            kind = "autoclass" if inspect.isclass(getattr(importlib.import_module(module), name)) else "autofunction"
            lines += [f".. {kind}:: {full}", ""]
        holder = nodes.section()
        holder.document = self.state.document
        self.state.nested_parse(StringList(lines, source="public names"), 0, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

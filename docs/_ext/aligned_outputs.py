"""Outputs that are tables, aligned by spaces: marked, so that a narrow screen slides them where it wraps others."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

COLUMNS = re.compile(r"\S {2,}\S+ {2,}\S")  # three on a line


def mark(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Mark what cells printed in columns, on two lines or more."""
    for block in doctree.findall(nodes.literal_block):
        if "output" in block["classes"] and len(COLUMNS.findall(block.astext())) >= 2:
            block["classes"].append("aligned")


def setup(app: Sphinx) -> dict[str, Any]:
    """Mark them when pages are written."""
    app.connect("doctree-resolved", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

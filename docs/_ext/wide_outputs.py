"""Outputs that are wide: tables aligned by spaces, and panels side by side. Marked, so that a narrow screen slides them where it wraps or shrinks others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx

COLUMNS = re.compile(r"\S {2,}\S+ {2,}\S")  # three on a line
GAP = re.compile(r"\S {2,}\S")
WIDE, PANELS = 2.2, 900  # times the height, and pixels, from where on there are panels whose letters are too small on a telephone


def mark(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Mark what cells printed in columns, on two lines or more, the sentences beside them apart, and what they drew much wider than high."""
    for block in doctree.findall(nodes.literal_block):
        if "output" in block["classes"] and len(COLUMNS.findall(block.astext())) >= 2:
            lines = block.astext().splitlines(keepends=True)
            block["classes"].append("aligned")
            block.rawsource = ""  # which has its parts written one by one
            block.children = []
            block += [nodes.inline("", line, classes=[] if GAP.search(line) else ["prose"]) for line in lines]
    for image in list(doctree.findall(nodes.image)):
        if Path(image["uri"]).suffix == ".png":
            with Image.open(Path(app.srcdir) / image["uri"]) as picture:
                if picture.width >= max(PANELS, WIDE * picture.height):
                    holder = nodes.container(classes=["slides"])
                    image.replace_self(holder)
                    holder += image


def setup(app: Sphinx) -> dict[str, Any]:
    """Mark them when pages are written."""
    app.connect("doctree-resolved", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

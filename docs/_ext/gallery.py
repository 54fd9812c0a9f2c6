"""The gallery's cards: a page's title, its field, and the last figure that its cells drew as a thumbnail."""

from __future__ import annotations

import re
import shutil
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

FOLDER = "gallery"
THUMBNAILS = Path("_static") / "thumbnails"


class Gallery(Directive):
    """A card for each page that the content names, in that order."""

    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        """One block of HTML; the pictures are put beside it when the site is built."""
        here = Path(self.state.document.settings.env.srcdir) / FOLDER
        cards = []
        for name in filter(None, (line.strip() for line in self.content)):
            text = (here / f"{name}.md").read_text()
            title = escape(re.findall(r"^# (.*)$", text, flags=re.MULTILINE)[0])
            field = escape(re.findall(r"^\*\*(.*?)\.?\*\*", text, flags=re.MULTILINE)[0])
            cards.append(
                f'<a class="gallery-card" href="{name}.html"><img src="../{THUMBNAILS.as_posix()}/{name}.png" alt="">'
                f"<strong>{title}</strong><span>{field}</span></a>"
            )
        return [nodes.raw("", f'<div class="gallery">{"".join(cards)}</div>', format="html")]


def thumbnails(app: Sphinx, error: Exception | None) -> None:
    """Copy the last figure of every page of the gallery to where its card looks for it."""
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    (out / THUMBNAILS).mkdir(parents=True, exist_ok=True)
    for page in sorted((out / FOLDER).glob("*.html")):
        pictures = re.findall(r'<img[^>]*src="\.\./(_images/[^"]+)"', page.read_text(encoding="utf-8"))
        if page.stem == "index":
            continue
        if not pictures:
            raise ExtensionError(f"{page.name} draws no figure, and a card of the gallery needs one")
        shutil.copy(out / pictures[-1], out / THUMBNAILS / f"{page.stem}.png")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and what is done when the pages are written."""
    app.add_directive("gallery", Gallery)
    app.connect("build-finished", thumbnails)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

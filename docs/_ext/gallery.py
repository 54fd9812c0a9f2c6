"""Cards of the gallery's problems: title, field, and the last figure that a page's cells drew, all of one size and told in words.

What a picture shows is said in the page's front matter, ``picture: ...``, for whoever cannot see it.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from PIL import Image, ImageOps
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

FOLDER = "gallery"
THUMBNAILS = Path("_static") / "thumbnails"
SIZE = (720, 480)


def told(name: str, text: str, pattern: str) -> str:
    """What a page says by this pattern, as HTML; a page of the gallery has to say it."""
    found = re.search(pattern, text, flags=re.MULTILINE)
    if found is None:
        raise ExtensionError(f"gallery/{name}.md has no {pattern!r}, and its card needs one")
    return escape(found[1])


class Gallery(Directive):
    """A card for each page that the content names, in that order; ``name: a title: a sentence`` puts these words under the picture."""

    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        """One block of HTML; the pictures are put beside it when the site is built."""
        env = self.state.document.settings.env
        up = "../" * env.docname.count("/")
        cards = []
        for line in filter(None, (line.strip() for line in self.content)):
            name, *words = line.split(": ")
            page = Path(env.srcdir) / FOLDER / f"{name}.md"
            env.note_dependency(str(page))
            text = page.read_text()
            title, field = words or (told(name, text, r"^# (.*)$"), told(name, text, r"^\*\*(.*?)\.?\*\*"))
            picture = told(name, text, r"^picture: \"(.*)\"$")
            cards.append(
                f'<a class="gallery-card" href="{up}{FOLDER}/{name}.html">'
                f'<img src="{up}{THUMBNAILS.as_posix()}/{name}.png" width="{SIZE[0]}" height="{SIZE[1]}" alt="{picture}">'
                f"<strong>{title}</strong><span>{field}</span></a>"
            )
        return [nodes.raw("", f'<div class="gallery">{"".join(cards)}</div>', format="html")]


def thumbnails(app: Sphinx, error: Exception | None) -> None:
    """Put the last figure of the first page and of every page of the gallery, on a card of one size, where cards look for it."""
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    (out / THUMBNAILS).mkdir(parents=True, exist_ok=True)
    for page in [out / "index.html", *sorted((out / FOLDER).glob("*.html"))]:
        pictures = re.findall(r'<img[^>]*src="(?:\.\./)?(_images/[^"]+)"', page.read_text(encoding="utf-8"))
        if page == out / FOLDER / "index.html":
            continue
        if not pictures:
            raise ExtensionError(f"{page.name} draws no figure, and a card of the gallery needs one")
        with Image.open(out / pictures[-1]) as picture:
            ImageOps.pad(picture.convert("RGB"), SIZE, color="white").save(out / THUMBNAILS / f"{page.stem}.png")


def told_in_words(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Say of every figure what it is to whoever cannot see it: the last one of a page by its front matter."""
    pictures = [image for image in doctree.findall(nodes.image) if "alt" not in image]
    for image in pictures:
        image["alt"] = "Figure drawn by the code above"
    picture = app.env.metadata[name].get("picture")
    if pictures and picture:
        pictures[-1]["alt"] = picture


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and what is done when the pages are written."""
    app.add_directive("gallery", Gallery)
    app.connect("doctree-resolved", told_in_words)
    app.connect("build-finished", thumbnails)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

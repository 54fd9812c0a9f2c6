"""Every link from a built page to another leads somewhere: to a file, and to an anchor in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.anchors.update(value for value in (named.get("id"), named.get("name")) if value)
        self.links += [value for value in (named.get("href"), named.get("src")) if value]


@cache
def page(path: Path) -> Page:
    """A page, read once."""
    return Page(path.read_text(encoding="utf-8"))


def dead_links(root: Path) -> Iterator[str]:
    """Say of each link that leads nowhere on which page it is."""
    for path in sorted(root.rglob("*.html")):
        if "_static" in path.parts:  # templates of the theme
            continue
        for link in page(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if not target.exists():
                yield f"{path.relative_to(root)}: {link} leads to no file"
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page(target).anchors:
                yield f"{path.relative_to(root)}: {link} has no such anchor"


def main() -> int:
    """Print the dead links of the site; returns their number, at most 1."""
    dead = list(dead_links(Path(sys.argv[1]).resolve()))
    print("\n".join(dead) or "no dead links")
    return min(1, len(dead))


if __name__ == "__main__":
    sys.exit(main())

"""``hierfl docs``: the page on troubleshooting, which is part of the package, entry by entry as text for a terminal.

``troubleshooting.md`` beside this file is a link to the documentation's page: what is installed, and what the site shows, are one text.
"""

from __future__ import annotations

import re
from importlib import resources
from textwrap import dedent, fill, indent

from hierfl.errors import UnknownNameError
from hierfl.near_names import near_names

WIDTH = 100
_CELL = re.compile(r"```\{code-cell\} python\n(?::.*\n)*\n*(.*?)```\n", re.DOTALL)
_SHOWN = re.compile(r"^with told\(\):\n((?:    .*\n?)+)", re.MULTILINE)  # the page prints the error there


def entries() -> dict[str, str]:
    """The page's entries by their headings, in its order."""
    page = resources.files("hierfl.command").joinpath("troubleshooting.md").read_text(encoding="utf-8")
    headed = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    return dict(zip(headed[1::2], headed[2::2]))


def entry(topic: str | None) -> str:
    """An entry as text, by its heading; all headings, each with its first sentence, where no topic is given.

    Raises ``UnknownNameError`` for a topic that there is not, with the nearest that there are.
    """
    known = entries()
    if topic is None:
        first = {heading: re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0] for heading, text in known.items()}
        listed = (f"{heading}\n{indent(fill(sentence, WIDTH - 4), '    ')}" for heading, sentence in first.items())
        return "\n".join([*listed, "", "hierfl docs TOPIC prints one of these."])
    found = [heading for heading in known if heading.casefold() == topic.casefold()]
    if not found:
        raise UnknownNameError(f"docs has no topic {topic!r}: {near_names(topic, known)}")
    return f"{found[0]}\n\n{_as_text(known[found[0]])}"


def _as_text(text: str) -> str:
    """Paragraphs filled, cells of code indented."""
    pieces = _CELL.split(text)  # text, code, text, code, ...
    written = []
    for place, piece in enumerate(pieces):
        if place % 2:
            written.append(indent(_SHOWN.sub(lambda shown: dedent(shown[1]), piece).strip("\n"), "    "))
        else:
            written += [fill(" ".join(part.split()), WIDTH) for part in piece.split("\n\n") if part.strip()]
    return "\n\n".join(written)

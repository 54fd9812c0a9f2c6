"""Names that there are not, answered with the nearest that there are.

``suggests_names`` stands before what users call with settings by name, a class or a function: instead of Python's own TypeError
they read which setting they meant. Nothing else changes: signatures, ``help()``, ``dataclasses`` and type-checkers see the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import SequenceMatcher, get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from hierfl.errors import UnknownNameError

CUTOFF = 0.5  # below this likeness a list helps more than a guess
SECOND = 0.85  # a second name is told where it is nearly as like
FEW = 4  # names that are all told beside the nearest
Called = TypeVar("Called", bound=Callable[..., Any])


def near_names(name: object, known: Iterable[str]) -> str:
    """``did you mean 'rounds'?``, or which there are where nothing is near; without regard to capitals and spacing."""
    spellings: dict[str, list[str]] = {}
    for one in known:
        spellings.setdefault(_folded(one), []).append(one)
    wrong = _folded(str(name))
    alike = get_close_matches(wrong, spellings, 2, CUTOFF)
    if len(alike) == 2 and _likeness(wrong, alike[1]) < SECOND * _likeness(wrong, alike[0]):
        alike.pop()
    near = [one for folded in alike for one in spellings[folded]]
    every = [one for same in spellings.values() for one in same]
    listed = f"there {'is' if len(every) == 1 else 'are'} {', '.join(map(repr, every))}."
    if not near:
        return listed
    return f"did you mean {' or '.join(map(repr, near[:2]))}?{f' T{listed[1:]}' if len(every) <= FEW else ''}"


def require_names(given: Iterable[str], known: Iterable[str], function: str) -> None:
    """Each name is one of a function's settings.

    Raises ``UnknownNameError``, naming the function that was called, and the nearest settings that there are.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = near_names(name, known) if known else "it takes none."
            raise UnknownNameError(f"{function}() has no setting {name!r}: {hint}")


def suggests_names(called: Called) -> Called:
    """The class (with those that inherit how it is made) or function, which answers a misspelt setting with the nearest one."""
    if isinstance(called, type):
        called.__init__ = _suggesting(called.__init__)  # type: ignore[misc]
        return called
    return _suggesting(called)


def _suggesting(function: Any) -> Any:
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    known = [
        p.name for p in signature(function).parameters.values() if p.kind in named and p.name not in ("self", "cls")
    ]

    @wraps(function)
    def checked(*given: Any, **settings: Any) -> Any:
        if not settings.keys() <= set(known):
            made = function.__name__ == "__init__"
            require_names(settings, known, type(given[0]).__name__ if made else function.__name__)
        return function(*given, **settings)

    return checked


def _likeness(first: str, second: str) -> float:
    return SequenceMatcher(None, second, first).ratio()


def _folded(name: str) -> str:
    return name.casefold().replace("_", " ").replace("-", " ")


def no_such_name(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module does not have, with the nearest that it has."""
    near = near_names(name, known)
    hint = f": {near}" if near.startswith("did") else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)

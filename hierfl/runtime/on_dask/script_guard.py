"""Scripts that start processes: each of these imports the script again, and must not run it."""

from __future__ import annotations

import ast
import linecache
import sys
from pathlib import Path

from hierfl.errors import SiteError


def require_guard(who: str) -> None:
    """Require that the line of the main script that is being run stands under an ``if``, so that whoever imports the script can skip it.

    Raises
    ------
    SiteError
        Naming the file and the line, with what to write.
    """
    file, line = _running()
    if file is None:
        return
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # no Python: whoever runs it knows what happens in its processes
        return
    statement = next((part for part in tree.body if part.lineno <= line <= (part.end_lineno or part.lineno)), None)
    if statement is None or any(isinstance(part, ast.If) and _holds(part, line) for part in ast.walk(statement)):
        return
    raise SiteError(
        f"{who} starts processes, each of which imports {Path(file).name} and would run its line {line} again. Put what the script does "
        "into a function, such as main(), and call it at the end under if __name__ == '__main__': main()."
    )


def _holds(part: ast.If, line: int) -> bool:
    return part.lineno <= line <= (part.end_lineno or part.lineno)


def _running() -> tuple[str | None, int]:
    """The main script's file and the line of it that is being run at its top level; no file where there is none, as in a notebook."""
    main, frame, line = sys.modules["__main__"], sys._getframe(), 0
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            line = frame.f_lineno  # the outermost counts: exec() has frames of its own
    return (getattr(main, "__file__", None), line) if line else (None, 0)

"""``hierfl``: look at a declared problem, inspect its implicit function, solve it, without writing a script."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from hierfl.command.actions import ACTIONS
from hierfl.command.arguments import parser
from hierfl.errors import HierflError
from hierfl.near_names import near_names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 2 after an error that is the user's to mend, or 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["reproduce"]:
        written = shlex.join(["python", "-m", "examples.reproduce", *given[1:]])
        print(f"hierfl: reproductions are among the examples now: write {written} in a clone of hierfl.", file=sys.stderr)
        return 2
    if given and not given[0].startswith("-") and given[0] not in ACTIONS:
        print(f"hierfl: there is no command {given[0]!r}: {near_names(given[0], ACTIONS)}", file=sys.stderr)
        return 2
    if given[:1] == ["site"] and given[1:2] in (["check"], ["log"]):
        given[:2] = [" ".join(given[:2])]
    if not given:
        parser(__doc__).print_help(sys.stderr)
        return 2
    chosen = parser(__doc__).parse_args(given)
    try:
        ACTIONS[chosen.command](chosen)
    except HierflError as error:
        print("\n".join([f"hierfl: {error}", *error.__notes__]), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nhierfl: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

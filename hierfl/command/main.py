"""``hierfl``: look at a declared problem, inspect its implicit function, solve it, without writing a script."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hierfl.command.actions import ACTIONS
from hierfl.command.arguments import parser
from hierfl.errors import HierflError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 2 after an error that is the user's to mend, or 130 when interrupted."""
    chosen = parser(__doc__).parse_args(arguments)
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

"""``hierfl reproduce``: the list of the papers' tables and figures, or one of them, run and told."""

from __future__ import annotations

import argparse
import sys

from hierfl.reproduce.conducting import conduct
from hierfl.reproduce.listing import every_reproduction, find_data, reproduction_of


def reproduce(chosen: argparse.Namespace) -> None:
    """Run what was named, or list what there is.

    Raises
    ------
    SettingError
        For a name that there is not.
    DataError
        If files of data are there and cannot be read.
    CheckpointError
        If the folder cannot be written, or holds other numbers.
    """
    if chosen.name is None:
        for one in every_reproduction():
            print(f"{one.name}\n    {one.about}\n    {one.source}; small: {one.smaller}")
        print("\nhierfl reproduce NAME runs one of them; --full at the paper's size.")
        return
    reproduction = reproduction_of(chosen.name)
    folder = chosen.out / reproduction.name
    data = find_data(reproduction, chosen.data, chosen.download)
    try:
        _, text = conduct(reproduction, data, folder, full=chosen.full, anew=chosen.anew, progress=not chosen.quiet)
    except KeyboardInterrupt:
        print(
            f"\ninterrupted; the cells that are done are kept in {folder}, and the same command goes on.",
            file=sys.stderr,
        )
        raise SystemExit(130) from None
    print(text)

"""Run a table or figure of the papers and print it beside the published one: ``python -m examples.reproduce NAME``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.reproduce import bilevel, cournot, heterogeneous_records, relu
from examples.reproduce.conducting import conduct
from examples.reproduce.reproduction import DataSets, Reproduction
from hierfl.errors import AbsentDataError, HierflError, MissingPackageError, SettingError
from hierfl.jaxtools.thread_pool import core_count
from hierfl.models.image_data import load_images
from hierfl.near_names import near_names

REPRODUCTIONS = {
    one.name: one
    for one in (
        heterogeneous_records.TABLE,
        heterogeneous_records.SPLIT,
        heterogeneous_records.FIGURE,
        heterogeneous_records.FEW_SAMPLES,
        relu.BY_STEPS,
        relu.BESIDE_SOFTPLUS,
        relu.BY_NEURONS,
        relu.CHOSEN,
        bilevel.FIGURE,
        cournot.TABLE,
        cournot.FIGURE,
    )
}


def find_data(reproduction: Reproduction, folder: Path | None, download: bool) -> DataSets:
    """The data sets that a reproduction would use and that are there, with scikit-learn's digits, and why others are absent.

    Nothing is fetched unless ``download``.

    Raises ``DataError`` if files are there and cannot be read.
    """
    found, absent = {}, {}
    for name in (*reproduction.data, "digits") if reproduction.data else ():
        try:
            found[name] = load_images(name, folder, download)
        except (AbsentDataError, MissingPackageError) as error:
            absent[name] = str(error)
    return DataSets(found, absent)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.reproduce", description=(__doc__ or "").split(":")[0], allow_abbrev=False
    )
    out = Path("reproductions")
    parser.add_argument("name", nargs="?", metavar="NAME", help="such as 2s-table4; without it, all names are listed")
    parser.add_argument("--full", action="store_true", help="the paper's size, which takes hours for some")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"where to write, in DIR/NAME ({out})")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where image data are (by default $HIERFL_DATA)")
    parser.add_argument("--download", action="store_true", help="fetch image data that are not there")
    parser.add_argument("--anew", action="store_true", help="do not go on from what is kept there")
    parser.add_argument("--processes", type=int, metavar="N", help="how many cells run side by side (with --full as many as there are cores, else 1)")
    parser.add_argument("--quiet", action="store_true", help="do not tell each cell as it ends")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """List what there is, or run what is named; returns 0, 2 after an error that is the user's to mend, or 130 when interrupted."""
    chosen = parsed(arguments)
    if chosen.name is None:
        for one in REPRODUCTIONS.values():
            print(f"{one.name}\n    {one.about}\n    {one.source}; small: {one.smaller}")
        print("\npython -m examples.reproduce NAME runs one of them; --full at the paper's size.")
        return 0
    try:
        if chosen.name not in REPRODUCTIONS:
            raise SettingError(f"there is no reproduction {chosen.name!r}: {near_names(chosen.name, REPRODUCTIONS)}")
        one, folder = REPRODUCTIONS[chosen.name], chosen.out / chosen.name
        processes = (core_count() if chosen.full else 1) if chosen.processes is None else chosen.processes
        if processes < 1:
            raise SettingError(f"--processes {processes}: a whole number of at least 1.")
        data = find_data(one, chosen.data, chosen.download)
        print(conduct(one, data, folder, full=chosen.full, anew=chosen.anew, progress=not chosen.quiet, processes=processes)[1])
    except HierflError as error:
        print("\n".join([f"reproduce: {error}", *error.__notes__]), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = f"the cells that are done are kept in {chosen.out / chosen.name}, and the same command goes on."
        print(f"\ninterrupted; {kept}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

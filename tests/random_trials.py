"""Random trials run by hand, `python -m <module> count first`: what is wrong of so many drawn levels, by seed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any


def trials(
    draw: Callable[[int], Any], faults: Callable[..., list[str]], shown: Callable[[Any], Any], told: bool = False
) -> None:
    """Print them for the counts of the command line; ``told`` says that ``faults`` counts what it sees, smooth but refused above all."""
    count, first = (*map(int, sys.argv[1:]), 0)[:2]
    bad, said = 0, Counter[str]()
    for seed in range(first, first + count):
        before = said["refused, smooth"]
        try:
            drawn = draw(seed)
            wrong = faults(drawn, said) if told else faults(drawn)
        except Exception as error:  # of whatever kind: it is a fault of this seed
            wrong = [f"{type(error).__name__}: {error}"]
        bad += bool(wrong)
        if wrong:
            print(seed, shown(draw(seed)), *wrong, sep="\n   ", flush=True)
        elif said["refused, smooth"] > before:
            print("smooth but refused:", seed, shown(drawn), flush=True)
    print(f"{count - bad} of {count} right", dict(said))

"""How the clients of a round are computed: one after another, or side by side; by a small cost model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from hierfl.compiler.cores import core_count
from hierfl.errors import SettingError

if TYPE_CHECKING:
    from hierfl.compiler.compiled import CompiledProblem

SMALL = 10_000
LARGE, LARGE_BY_SAMPLE = 4_000, 1_000  # scalars of a client; where each step answers a sample, fewer make a long round
COPIES = 4  # of x and y that a client's step holds: itself, a gradient, a move, and one for the compiler


class Schedule(NamedTuple):
    """``kind`` and ``reason``: ``"map"`` (one client after another), ``"threads"`` (so in groups, on all cores) or ``"vmap"``."""

    kind: str
    reason: str


def choose_schedule(problem: CompiledProblem, cohort: int, asked: str | None = None) -> Schedule:
    """How a cohort's clients are computed.

    On a CPU a client at a time keeps its state in cache, but pays for every step of a loop. Measured on one core: side by side
    a round takes a fifth to a half of the time where 10 to 100 clients have up to 100 scalars each, as long as that of
    one after another with 10 clients of 1,000, and up to ten times as long where every client projects on a set of its own.
    Groups of clients in threads cost half a millisecond a round, which takes large clients to earn.
    """
    held = cohort * (problem.upper.size + problem.lower.size)
    if asked is not None:
        return Schedule(asked, "as asked for")
    if jax.default_backend() != "cpu":
        return Schedule("vmap", "side by side, as accelerators want it")
    if problem.scope != "client" and held <= SMALL:
        return Schedule("vmap", f"side by side: together they hold {held:,} scalars, at most {SMALL:,}")
    reason = f"together they hold {held:,} scalars, over {SMALL:,}"
    if problem.scope == "client":
        reason = "each client solves a lower level of its own"
    large = LARGE_BY_SAMPLE if problem.scope == "sample" else LARGE
    if core_count() > 1 and cohort > 1 and held >= large * cohort:
        groups = f"one after another in a group for each of {core_count()} cores"
        return Schedule("threads", f"{groups} (on one where a round calls Python or factorises matrices): {reason}")
    return Schedule("map", f"one after another: {reason}")


def require_memory(problem: CompiledProblem, schedule: Schedule, cohort: int, memory: Any, seeds: int) -> None:
    """The clients' states, and what they hold at once, fit into what is free now; ``memory`` is one client's.

    Raises
    ------
    SettingError
        Saying how much is needed, and what needs less.
    """
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(memory))
    together = {"vmap": cohort, "threads": min(cohort, core_count()), "map": 1}[schedule.kind]
    at_once = together * COPIES * 8 * (problem.upper.size + problem.lower.size)
    needed = seeds * (2 * problem.num_clients * state + at_once)
    free = available_bytes()
    if needed > free:
        remedy = "schedule='map', fewer participants" if schedule.kind == "vmap" else "fewer clients or seeds"
        raise SettingError(
            f"this run needs about {needed / 1e9:.1f} GB for {problem.num_clients:,} clients ({seeds} seed{'s' * (seeds > 1)}, "
            f"{schedule.kind}), and {free / 1e9:.1f} GB are free: take {remedy}, or a solver whose clients remember less."
        )


def available_bytes() -> int:
    """Memory that can be had without swapping; all of the machine's where the system does not say."""
    known = Path("/proc/meminfo")
    if known.exists():
        for line in known.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

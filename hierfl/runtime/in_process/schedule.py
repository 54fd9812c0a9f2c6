"""How the clients of a round are computed: one after another, or side by side; by a small cost model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.filesize import decimal

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Table, chunk_size
from hierfl.compiler.explain import Lowered
from hierfl.errors import SettingError
from hierfl.jaxtools.thread_pool import core_count
from hierfl.runtime.contract import Work

SMALL, SMALL_BY_SAMPLE = 10_000, 100_000  # scalars of clients that are computed side by side
LARGE, LARGE_BY_SAMPLE = 4_000, 1_000  # scalars of a client for threads; fewer if each step iterates for a sample
ALL_POINTS = 10_000_000  # scalars of clients side by side, at all points that their steps look at: 80 MB
READ = 200_000  # scalars of data that steps side by side read: more of them leave the cache before they are used again


class Schedule(NamedTuple):
    """``kind`` is ``"map"`` (one client after another), ``"vmap"`` (side by side) or ``"threads"`` (in a group for each core).

    ``side_by_side`` says which of the two it is, for ``"threads"`` within a group.
    """

    kind: str
    side_by_side: bool
    reason: str


def choose_schedule(
    problem: CompiledProblem, cohort: int, asked: str | None = None, work: Work | None = None
) -> Schedule:
    """Choose how a cohort's clients are computed; by default, where each reads all its rows at one point, with lower levels by Exact.

    On a CPU a client at a time keeps its state in cache, but pays for every step of a loop. Measured on one core: side by side
    a round takes a fifth to a half of the time where 10 to 100 clients have up to 100 scalars each, as long as that of
    one after another with 10 clients of 1,000, and up to ten times as long where every client projects on a set of its own.
    Where a step answers a sample, it takes two thirds with 10 clients of 1,000 and half with 10 of 10,000.
    Where steps read 100,000 scalars of data together both take as long; with 320,000 side by side takes twice, with a million
    three times, and with full passes over megabytes ten times as long.
    Groups of clients in threads cost a quarter of a millisecond a round, which takes large clients to earn.
    """
    if jax.default_backend() != "cpu":
        kind = asked or "vmap"
        return Schedule(kind, kind == "vmap", "as asked for" if asked else "side by side, as accelerators want it")
    if asked in ("map", "vmap"):
        return Schedule(asked, asked == "vmap", "as asked for")
    each, cores = problem.upper.size + problem.lower.size, core_count()
    by_sample = problem.scope == "sample"
    if work is None:
        method = problem.exact.method_in_rounds
        work = Work(method is not None and method.at_once, None, 1)
    small, large = SMALL_BY_SAMPLE if by_sample else SMALL, LARGE_BY_SAMPLE if by_sample and not work.at_once else LARGE
    threads = asked == "threads" or (cores > 1 and cohort > 1 and each >= large)
    group = -(-cohort // cores) if threads else cohort
    held, read = each * group, scalars_read(problem, work.rows) * group
    few, light = by_sample or read <= READ, held * work.points <= ALL_POINTS
    together = problem.scope != "client" and held <= small and few and light
    how, size = ("side by side", "at most") if together else ("one after another", "over")
    if threads:
        how += f" in a group for each of {cores} cores (on one where a round calls Python or factorises matrices)"
    why = f"together they hold {held:,} scalars, {size} {small:,}"
    if held <= small and not few:
        why = f"their steps together read {read:,} scalars of data, over {READ:,}"
    elif held <= small and not light:
        why = f"together they hold {held * work.points:,} scalars at {work.points:,} points, over {ALL_POINTS:,}"
    if problem.scope == "client":
        why = "each client solves a lower level of its own"
    kind = "threads" if threads else "vmap" if together else "map"
    return Schedule(kind, together, "as asked for" if asked else f"{how}: {why}")


def how_clients_run(problem: CompiledProblem) -> Lowered:
    """Say what ``explain()`` says of the clients."""
    schedule = choose_schedule(problem, problem.num_clients)
    held = problem.num_clients * (problem.upper.size + problem.lower.size)
    return Lowered(
        "clients",
        f"{schedule.reason} (where all take part, with all their rows)",
        f"{held:,} scalars of x and y for all of them",
    )


def scalars_read(problem: CompiledProblem, rows: int | None) -> int:
    """Count the scalars of data that one client's step reads, in its largest table: those of so many rows, or of a piece of a full pass."""

    def read(table: Table) -> int:
        count = chunk_size(table) if rows is None else rows
        return count * sum(int(np.prod(column.shape[1:], dtype=int)) for column in table.values.values())

    return max(map(read, problem.static_data.clients.tables), default=0)


def require_memory(needed: int, problem: CompiledProblem, schedule: Schedule, seeds: int) -> None:
    """Require that so many bytes are free.

    Raises ``SettingError``, saying how much is needed, and what needs less.
    """
    free = available_bytes()
    if needed > free:
        clients, one_by_one = problem.num_clients, "schedule='map', " if schedule.side_by_side else ""
        raise SettingError(
            f"this run needs about {decimal(needed)} beside its data for {clients:,} client{'s' * (clients > 1)} "
            f"({seeds} seed{'s' * (seeds > 1)}, {schedule.kind}), and {decimal(free)} are free. Less is needed with "
            f"{one_by_one}precision='single', fewer seeds, participants or directions, smaller batches, a smaller evaluate_every, or a "
            f"solver whose clients remember less."
        )


def available_bytes() -> int:
    """Measure the memory that can be had: an accelerator's, or this machine's without swapping; all of it where the system does not say."""
    device = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in device:
        return int(device["bytes_limit"] - device["bytes_in_use"])
    known = Path("/proc/meminfo")
    if known.exists():
        for line in known.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

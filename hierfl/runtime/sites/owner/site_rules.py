"""What a site's owner allows: as settings, or as a file that every runtime reads."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import SettingError
from hierfl.language.aggregates import Worst, tails_of
from hierfl.language.declaration import Declaration
from hierfl.language.declared_arguments import samples_among
from hierfl.language.federation.client import Client
from hierfl.language.printing.text import expression_text
from hierfl.near_names import near_names, suggests_names
from hierfl.runtime.privacy.ledger import LedgerContent, LedgerRun
from hierfl.runtime.sites.parcels import Start

GROUPS = 20  # values at most of a column that tells groups
HOURS = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d-(?:(?:[01]\d|2[0-3]):[0-5]\d|24:00)")


@suggests_names
@dataclass(frozen=True)
class SiteRules:
    """A site's rules.

    Parameters
    ----------
    algorithms
        The names of solvers, such as ``("FedAvg", "SCAFFOLD")``; None allows all.
    min_samples
        The fewest rows behind every number that is sent: each client must hold so many in every table, no step may draw fewer at once, and no
        ``hf.Worst`` or ``hf.CVaR`` may be of fewer.
    max_rounds
        The most rounds that are answered, of all runs together, rounds made again and values of f included; None for no limit.
    max_messages
        The most messages that are answered, of all runs together; None for no limit.
    min_noise
        The least ``multiplier`` of :class:`hierfl.runtime.GaussianNoise` that a run must have; None allows runs without noise. Noise that
        sites share counts where ``min_sum`` is asked for as well.
    min_sum
        The least ``least`` of :class:`hierfl.runtime.PairwiseMasks` that a run must have; None allows runs without masks.
    shared_seeds
        Whether a server may ask for the rows that its own seed draws. It then knows which rows are behind every number, and a long run of
        minibatches tells it all of them.
    problems
        The marks of the declarations that may run (``hierfl show PROBLEM --mark``); None allows any that is the site's own.
    epsilon, delta
        What all runs together may tell of a client, by the site's ledger: a run whose planned messages would carry it beyond epsilon at delta is
        refused, as is one without noise. None for no limit.
    expires
        The last day on which anything is answered.
    hours
        When runs are answered, by this machine's clock, such as ``"20:00-06:00"``.
    servers
        The names of the servers that may ask, by their certificates; None for all.
    min_cell
        The fewest rows of a client that have the same value, in columns of at most 20 values: groups, such as wards, the reference among them, or
        whether an event happened.
        What is sent of a model with such a column is about few people where few are in the group.

    Raises
    ------
    SettingError
        For numbers out of range, and hours that are none.
    """

    algorithms: tuple[str, ...] | None = None
    min_samples: int = 1
    max_rounds: int | None = None
    min_noise: float | None = None
    min_sum: int | None = None
    max_messages: int | None = None
    shared_seeds: bool = False
    problems: tuple[str, ...] | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    expires: date | None = None
    hours: str | None = None
    servers: tuple[str, ...] | None = None
    min_cell: int = 1

    def __post_init__(self) -> None:
        if any(number is not None and number < 0 for number in (self.min_samples, self.min_cell, self.max_rounds, self.max_messages)):
            raise SettingError("SiteRules: min_samples, min_cell, max_rounds and max_messages are numbers from 0 on.")
        if self.min_noise is not None and not self.min_noise > 0:
            raise SettingError(f"SiteRules(min_noise={self.min_noise!r}): a positive number, or None.")
        if self.min_sum is not None and self.min_sum < 2:
            raise SettingError(f"SiteRules(min_sum={self.min_sum!r}): at least 2 sites, or None.")
        if self.epsilon is not None and not self.epsilon > 0:
            raise SettingError(f"SiteRules(epsilon={self.epsilon!r}): a positive number, or None.")
        if not 0 < self.delta < 1:
            raise SettingError(f"SiteRules(delta={self.delta!r}): in (0, 1), well below one over the number of rows.")
        if self.hours is not None and not HOURS.fullmatch(self.hours):
            raise SettingError(f'SiteRules(hours={self.hours!r}): from when until when, as in "20:00-06:00".')

    def against_now(self, now: datetime) -> str | None:
        """What speaks against answering at this time; None where nothing does."""
        if self.expires is not None and now.date() > self.expires:
            return f"this site has answered until {self.expires}"
        if self.hours is None:
            return None
        first, last = self.hours.split("-")
        at = f"{now:%H:%M}"
        within = first <= at < last if first < last else at >= first or at < last
        return None if within else f"this site answers from {first} to {last} of its own time"

    def against_server(self, name: str | None) -> str | None:
        """What speaks against answering a server of this name, None where nobody tells it; None where nothing does."""
        if self.servers is None or name in self.servers:
            return None
        if name is None:
            return "this site answers servers by their names, which a runtime tells it whose servers have certificates: hf.runtime.Dask by tls://"
        return f"this site answers other servers than {name!r}"

    def against(self, start: Start, declaration: Declaration, held: Mapping[int, Client]) -> str | None:
        """What speaks against a run, before it is bound; None where nothing does."""
        if self.algorithms is not None and start.algorithm not in self.algorithms:
            return f"{start.algorithm} is not among the algorithms that this site allows: {', '.join(self.algorithms)}"
        if self.problems is not None and start.mark not in self.problems:
            return f"the problem {start.mark} is not among those that this site allows: its owner adds the mark to them once it was read"
        mere_part = start.noise is not None and start.noise.shared and self.min_sum is None
        noise = None if start.noise is None or mere_part else start.noise.multiplier
        if self.min_noise is not None and (noise is None or noise < self.min_noise):
            given = "none" if noise is None else f"noise of multiplier {noise:g}"
            return f"this site asks for noise of multiplier {self.min_noise:g} or more, and the run has {given}"
        if self.epsilon is not None and noise is None:
            given = "noise that sites share, which counts where its owner asks for masks" if mere_part else "no noise"
            return f"this site keeps to epsilon = {self.epsilon:g} over all runs, and the run has {given}: give noise=..."
        least = None if start.masks is None else start.masks.least
        if self.min_sum is not None and (least is None or least < self.min_sum):
            given = "none" if least is None else f"those of least={least}"
            return f"this site asks for masks of least={self.min_sum} or more, and the run has {given}"
        if start.shared_seeds and not self.shared_seeds:
            return "the run asks for rows that the server's seed draws, and this site draws its own: leave shared_seeds=True out"
        return self.against_rows(declaration, held)

    def against_rows(self, declaration: Declaration, held: Mapping[int, Client]) -> str | None:
        """What speaks against data of so many rows, or against what a problem makes of them; None where nothing does."""
        above = declaration.objective.server  # whose rows are the server's
        servers = () if above is None else tails_of(above)
        tails = [one for one in declaration.roles.aggregates if isinstance(one, Worst) and not any(one is own for own in servers)]
        for place, client in held.items():
            for tail in tails:
                rows = _rows_of(tail, client)
                if rows < self.min_samples:
                    return (
                        f"{expression_text(tail)} is of {rows} of the rows of {client.called(place)} at a time, fewer than the {self.min_samples} that "
                        f"this site asks for behind every number: take hf.E, or hf.CVaR of a larger share"
                    )
            for sample in client.samples:
                count = client.num_samples(sample)
                if count is not None and count < self.min_samples:
                    return f"{client.called(place)} holds fewer rows of {sample.name()!r} than the {self.min_samples} that this site asks for"
            for table in declaration.roles.client_tables if self.min_cell > 1 else ():
                held_rows = [client.samples[sample] for sample in table if client.num_samples(sample) is not None]
                if _has_cell_below(self.min_cell, held_rows):
                    return (
                        f"{client.called(place)} has groups of fewer rows than the {self.min_cell} that this site asks for, in a column of "
                        f"{', '.join(repr(sample.name()) for sample in table)}: put rare values together, or leave the column out"
                    )
        return None

    def against_batches(self, fewest: int | None) -> str | None:
        """What speaks against a run whose steps read so few rows at once (None: all of them); None where nothing does."""
        if fewest is None or fewest >= self.min_samples:
            return None
        return (
            f"a step of this run reads {fewest} rows of a client at once, or all but so many, fewer than the {self.min_samples} that this site asks "
            f"for behind every number: take batch_size=None, or one that neither is nor leaves so few, at the end of a pass either"
        )

    def against_more(self, rounds: int, messages: int) -> str | None:
        """What speaks against one more of each after so many; None where nothing does."""
        for name, most, answered in (("rounds", self.max_rounds, rounds), ("messages", self.max_messages, messages)):
            if most is not None and answered >= most:
                return f"this site has answered the {most} {name} that it allows"
        return None

    def against_spending(self, ledger: LedgerContent, run: LedgerRun, ending: LedgerRun | None) -> str | None:
        """What speaks against all that a run has planned, beside what the ledger has, as another one ends; None where nothing does."""
        if self.epsilon is None or (after := ledger.epsilon(self.delta, run, ending)) <= self.epsilon:
            return None
        if after == math.inf:
            return f"this site keeps to epsilon = {self.epsilon:g} over all runs, of which one had no noise: no run has any left"
        return (
            f"with the {run.most} messages that this run plans, all runs together would come to epsilon = {after:.4g} at delta = {self.delta:g}, "
            f"and this site keeps to {self.epsilon:g}: plan fewer rounds, or more noise"
        )


def _rows_of(tail: Worst, client: Client) -> float:
    """How many of a client's rows an aggregate of a tail is of at a time."""
    of = samples_among(tail.parameters()) or tuple(client.samples)  # or of the rows' answers alone
    counts = [client.num_samples(sample) for sample in client.samples if any(sample is one for one in of)]
    return min((max(1, math.ceil(tail.tail * count - 1e-9)) for count in counts if count is not None), default=math.inf)


def _has_cell_below(fewest: int, table: Sequence[Any]) -> bool:
    """Whether fewer rows than so many, and some, have the same value, in a column of a table's samples with few values or in several that are categories.

    These are columns of zeros and ones that exclude each other, wherever they stand: the rows with none of them are a group that has no column.
    """
    if not table or len({len(rows) for rows in table}) > 1:  # which are no table: a run says so when it lays them out
        return False
    columns = np.hstack([np.asarray(rows, float).reshape(len(rows), -1) for rows in table]).T
    counted = [np.unique(column, return_counts=True) for column in columns]
    if any(counts.min() < fewest for values, counts in counted if len(values) <= GROUPS):
        return True
    flags = [{*values[:3]} <= {0.0, 1.0} for values, _ in counted]
    alike, counts = np.unique(columns[flags] == 1, axis=1, return_counts=True)
    return any(flags) and _leave_below(fewest, alike, counts)


def _leave_below(fewest: int, flags: np.ndarray, counts: np.ndarray) -> bool:
    """Whether of rows, so many of each kind, fewer than so many, and some, are in none of some flags that exclude each other.

    A kind is in one of the flags, or left, by which the flags that it has are out, until the rows that no flag has are too many.
    """
    if counts[~flags.any(axis=0)].sum() >= fewest:
        return False
    if counts.sum() < fewest:
        return len(counts) > 0
    having = flags[:, np.where(flags.any(axis=0), flags.sum(axis=0), np.inf).argmin()]
    taken = (_leave_below(fewest, flags[~(flags & own).any(axis=1)][:, ~own], counts[~own]) for own in flags[having])
    return any(taken) or _leave_below(fewest, flags[~having], counts)


_WORDS = "a list of words", lambda value: isinstance(value, list) and all(isinstance(word, str) for word in value)
_COUNT = "a whole number", lambda value: type(value) is int
_NUMBER = "a number", lambda value: type(value) in (int, float)
_KINDS = {
    **dict.fromkeys(("algorithms", "problems", "servers"), _WORDS),
    **dict.fromkeys(("min_samples", "min_cell", "max_rounds", "max_messages", "min_sum"), _COUNT),
    **dict.fromkeys(("min_noise", "epsilon", "delta"), _NUMBER),
    "shared_seeds": ("true or false", lambda value: isinstance(value, bool)),
    "expires": ("a date, such as 2026-12-31", lambda value: type(value) is date),
    "hours": ("words, such as \"20:00-06:00\"", lambda value: isinstance(value, str)),
}


def read_rules(path: Path) -> SiteRules:
    """The rules in a file ``site.toml``: the settings of :class:`SiteRules`, by their names.

    Raises ``SettingError`` for a file that is not there or no TOML, a name that is none of them, and values of another type.
    """
    try:
        given: dict[str, Any] = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingError(f"--rules {path}: it cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: this is no TOML: {error}.") from None
    for name, value in given.items():
        if name not in _KINDS:
            raise SettingError(f"{path}: there is no rule {name!r}: {near_names(name, [one.name for one in fields(SiteRules)])}")
        wanted, fits = _KINDS[name]
        if not fits(value):
            raise SettingError(f"{path}: {name} = {value!r}: {wanted}.")
    settings: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return SiteRules(**settings)

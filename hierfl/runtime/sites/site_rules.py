"""What a site's owner gives and allows: data by the names of clients, samples and constants in the declaration; which algorithms,
how few rows a client may have, for how many rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hierfl.errors import DataError, SettingError
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.given_arrays import has_names
from hierfl.language.sample import Sample
from hierfl.near_names import near_names, suggests_names


@suggests_names
@dataclass(frozen=True)
class SiteRules:
    """A site's rules.

    Parameters
    ----------
    algorithms
        The names of solvers, such as ``("FedAvg", "SCAFFOLD")``; None allows all.
    min_samples
        The fewest rows that each client must hold in every table.
    max_rounds
        The most rounds that are answered, of all runs together; None for no limit.
    min_noise
        The least ``multiplier`` of :class:`hierfl.runtime.GaussianNoise` that a run must have; None allows runs without noise. Noise that
        sites share counts where ``min_sum`` is asked for as well.
    min_sum
        The least ``least`` of :class:`hierfl.runtime.PairwiseMasks` that a run must have; None allows runs without masks.

    Raises
    ------
    SettingError
        For numbers below zero.
    """

    algorithms: tuple[str, ...] | None = None
    min_samples: int = 1
    max_rounds: int | None = None
    min_noise: float | None = None
    min_sum: int | None = None

    def __post_init__(self) -> None:
        if self.min_samples < 0 or (self.max_rounds is not None and self.max_rounds < 0):
            raise SettingError("SiteRules: min_samples and max_rounds are numbers from 0 on.")
        if self.min_noise is not None and not self.min_noise > 0:
            raise SettingError(f"SiteRules(min_noise={self.min_noise!r}): a positive number, or None.")
        if self.min_sum is not None and self.min_sum < 2:
            raise SettingError(f"SiteRules(min_sum={self.min_sum!r}): at least 2 sites, or None.")

    def against(
        self, algorithm: str, held: Mapping[int, Client], noise: float | None = None, least: int | None = None
    ) -> str | None:
        """What speaks against a run of an algorithm, its noise's multiplier, and sums over so many sites; None where nothing does."""
        if self.algorithms is not None and algorithm not in self.algorithms:
            return f"{algorithm} is not among the algorithms that this site allows: {', '.join(self.algorithms)}"
        if self.min_noise is not None and (noise is None or noise < self.min_noise):
            given = "none" if noise is None else f"noise of multiplier {noise:g}"
            return f"this site asks for noise of multiplier {self.min_noise:g} or more, and the run has {given}"
        if self.min_sum is not None and (least is None or least < self.min_sum):
            given = "none" if least is None else f"those of least={least}"
            return f"this site asks for masks of least={self.min_sum} or more, and the run has {given}"
        for place, client in held.items():
            for sample in client.samples:
                count = client.num_samples(sample)
                if count is not None and count < self.min_samples:
                    return f"{client.called(place)} holds fewer rows of {sample.name()!r} than the {self.min_samples} that this site asks for"
        return None

    def against_round(self, answered: int) -> str | None:
        """What speaks against one more round after so many; None where nothing does."""
        if self.max_rounds is not None and answered >= self.max_rounds:
            return f"this site has answered the {self.max_rounds} rounds that it allows"
        return None


def held_of(declaration: Declaration, loaded: Any) -> dict[int, Client]:
    """The site's clients by their index, from ``{client: {sample or constant: values}}``.

    A client is called by its name in the declaration, or by its index where it has none.

    Raises ``DataError`` for names that the declaration does not have, with the nearest; for columns of tables that are
    others; also as :class:`hierfl.Client`.
    """
    federation = declaration.federation
    if federation is None:
        raise DataError(
            "the problem has no federation: declare hf.Federation([hf.Client({...: hf.Elsewhere(rows)}, name=...)])."
        )
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(own, Mapping) for own in loaded.values()):
        raise DataError(
            "a site's data are {client: {sample or constant: values}}, such as {'north': {'u': array, 'rho': 0.3}}."
        )
    names: dict[Any, int] = {client.name or place: place for place, client in enumerate(federation.clients)}
    held = {}
    for name, own in loaded.items():
        if name not in names:
            raise DataError(
                f"client {name!r} of this site's data: {near_names(str(name), [str(known) for known in names])}"
            )
        client, label = _client(federation.clients[names[name]], name, own), f"client {name!r} in this site's data"
        _require_columns_to_compare(federation, client, label)
        held[names[name]] = client.with_columns(federation.columns, label)
    return held


def _require_columns_to_compare(federation: Federation, client: Client, label: str) -> None:
    """Refuse names that the declaration cannot say the order of: those of another site may stand in another one."""
    for leaf, labels in client.labels.items():
        if leaf not in federation.columns and any(map(has_names, labels[1 if isinstance(leaf, Sample) else 0 :])):
            raise DataError(
                f"{leaf.name()!r} of {label} has columns with names, and the declaration has none to compare them with: declare "
                f"hf.Elsewhere(rows, columns=[...]) for a sample, or load .to_numpy()."
            )


def _client(declared: Client, name: Any, own: Mapping[Any, Any]) -> Client:
    """A client with the values in place of what was declared of it."""
    samples = {sample.name(): sample for sample in declared.samples}
    constants = {constant.name(): constant for constant in declared.parameters}
    known = [*samples, *constants]
    for leaf in own:
        if leaf not in known:
            raise DataError(f"{leaf!r} of client {name!r} in this site's data: {near_names(str(leaf), known)}")
    if missing := [leaf for leaf in known if leaf not in own]:
        raise DataError(f"this site's data of client {name!r} lack {', '.join(missing)}.")
    tables = [{sample: own[sample.name()] for sample in table} for table in declared.tables]
    rows = tables or {sample: own[known_as] for known_as, sample in samples.items()}
    return Client(rows, {constant: own[known_as] for known_as, constant in constants.items()}, declared.name)

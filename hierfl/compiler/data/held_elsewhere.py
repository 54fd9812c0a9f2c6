"""What stands in the tables for rows that are held elsewhere: a few invented ones, over and over, as the compiler's looks need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.client import Client
from hierfl.language.federation.elsewhere import TILE, Elsewhere, stand_ins
from hierfl.language.sample import ClientParameter, Sample


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StandIns:
    """A column of so many ``rows`` that has a few only, and repeats them."""

    tile: Any
    rows: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the column would have, ``(rows, *sample shape)``."""
        return (self.rows, *self.tile.shape[1:])

    @property
    def nbytes(self) -> int:
        """The bytes that are here."""
        return int(self.tile.nbytes)

    def __getitem__(self, rows: Any) -> Any:
        """Rows by index: an array, or a traced one."""
        if isinstance(rows, jax.core.Tracer) or isinstance(self.tile, jax.core.Tracer):
            return jnp.asarray(self.tile)[jnp.asarray(rows) % self.tile.shape[0]]
        return np.asarray(self.tile)[np.asarray(rows) % self.tile.shape[0]]


def any_elsewhere(parties: Sequence[Client]) -> bool:
    """Whether a party's samples or parameters are held elsewhere."""
    return any(
        isinstance(value, Elsewhere)
        for party in parties
        for held in (party.samples, party.parameters)
        for value in held.values()
    )


def column_elsewhere(sample: Sample, parties: Sequence[Client]) -> StandIns | None:
    """What stands for a sample's rows of all parties; None where all of them are here."""
    if not any(isinstance(party.samples[sample], Elsewhere) for party in parties):
        return None
    return StandIns(stand_ins(sample, TILE), sum(len(party.samples[sample]) for party in parties))


def parameters_of(parameter: ClientParameter, parties: Sequence[Client]) -> np.ndarray:
    """A parameter's values of all parties ``(m, *shape)``; invented ones where some are held elsewhere."""
    held = [party.parameters[parameter] for party in parties]
    if any(isinstance(value, Elsewhere) for value in held):
        return stand_ins(parameter, len(held))
    return np.stack([np.asarray(value, dtype=float) for value in held])


def require_all_here(parties: Sequence[Client], what: str) -> None:
    """Require that nobody's data are elsewhere.

    Raises
    ------
    DataError
        Naming the first client whose data are, and what can be done without them.
    """
    for place, party in enumerate(parties):
        if any_elsewhere([party]):
            raise DataError(
                f"{what} needs everybody's data in this process, and those of {party.called(place)} are elsewhere (hf.Elsewhere): only a run on a "
                f"runtime whose processes hold them, problem.solve(solver, runtime=...), reaches them, by messages."
            )


def require_as_declared(place: int, declared: Client, held: Client) -> None:
    """Require that a client holds what was declared of it: the same samples and constants, as many rows, and all of it here.

    Raises
    ------
    DataError
        Naming the client and what differs.
    """
    who = declared.called(place)
    if any_elsewhere([held]):
        raise DataError(f"{who} is to hold its data here, and says of some that they are elsewhere: give the arrays.")
    for kind, mine, theirs in (
        ("sample", held.samples, declared.samples),
        ("client parameter", held.parameters, declared.parameters),
    ):
        names, wanted = ({leaf.name() for leaf in side} for side in (mine, theirs))
        if set(mine) != set(theirs):
            raise DataError(
                f"{who} holds the {kind}s {', '.join(sorted(names)) or 'none'}, but {', '.join(sorted(wanted)) or 'none'} were declared of it."
            )
    for sample in declared.samples:
        said, has = declared.num_samples(sample), held.num_samples(sample)
        if said != has:
            raise DataError(
                f"{who} holds {has} rows of sample {sample.name()!r}, but {said} were declared: the weights and the steps go by that number; "
                f"declare hf.Elsewhere({has})."
            )

"""``hf.runtime.PairwiseMasks``: the server sees sums over sites only, after Bonawitz et al. (2017), without their shares.

Every two sites agree on a key (X25519), from which one adds and the other subtracts the same mask, so that masks cancel in the sum over
all that were asked. A site adds a mask of its own as well, which it tells once everybody's message is there: a message that comes late, when
the round is being made again without its site, stays hidden. A site that is lost before its message is left out, and the others mask anew;
one that is lost between its message and its own mask ends the run, since a second sum without it would tell its message.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, MissingPackageError, SettingError
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Algorithm

SOLVERS = ("FedAvg", "FedProx", "FedRZO", "SCAFFOLD")
MOST_BITS = 56


class MaskOrder(NamedTuple):
    """What a run asks of its sites: the fewest of them in a sum, the binary places of numbers, and a name for the run."""

    least: int
    bits: int
    run: str

    def require_sound(self) -> None:
        """Require numbers as :class:`PairwiseMasks` has them: an order comes from a server that may have sent anything.

        Raises ``SettingError`` for any other.
        """
        PairwiseMasks(self.least, self.bits)

    def told(self, sums: int, error: float) -> dict[str, Any]:
        """What the result says of it, with the number of sums that were opened, and a bound on the rounding of a mean."""
        return {
            "mechanism": "pairwise masks (X25519, HKDF, ChaCha20) modulo 2^64, and one of each site's own",
            "least": self.least,
            "resolution": 2.0**-self.bits,
            "rounding_at_most": error,
            "sums": sums,
            "against": "a server that keeps to the protocol, and all but two of the sites in a sum",
        }


@suggests_names
@dataclass(frozen=True)
class PairwiseMasks:
    """The server sees weighted sums over sites, and no single site's messages, for ``hf.runtime.Dask(masks=...)`` and ``Delayed(masks=...)``.

    For FedAvg, FedProx, SCAFFOLD and FedRZO (``communication="full"``) without a lower level, whose servers need nothing but means. A site
    weighs and sums its own clients' messages, rounds the sum to whole multiples of 2^-bits, and adds masks that cancel over the sites of the
    round; the objective's estimates travel in the same sum. Every round takes a second exchange, in which masks of the sites' own are told.

    The server must keep to the protocol: one that hands on keys of its own making, or tells sites apart who answered, can open messages.
    Sums themselves tell what sums tell: of two sites each knows the other's part, and sums over nearly the same sites differ by one.

    Parameters
    ----------
    least
        The fewest sites in a sum, from 2 on. With fewer the run ends, as ``"paused: ..."``.
    bits
        The binary places of the numbers summed, from 1 to 56. No part of a sum may be beyond 2^(62 - bits) over the number of sites.

    Raises
    ------
    SettingError
        For settings out of range.
    MissingPackageError
        When a run begins, without the extra ``hierfl[privacy]``.
    IncompatibleSolverError
        When a run begins, for another algorithm.
    """

    least: int = 3
    bits: int = 40

    def __post_init__(self) -> None:
        for name, first, last in (("least", 2, 10**9), ("bits", 1, MOST_BITS)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not first <= value <= last:
                hint = ": a sum over one site hides nothing" if name == "least" else ""
                raise SettingError(
                    f"{name}={value!r} of PairwiseMasks: a whole number from {first} on{hint}, at most {last}."
                )

    def order(self, problem: CompiledProblem, algorithm: Algorithm) -> MaskOrder:
        """What a run with these masks asks of its sites."""
        require_means(problem, algorithm)
        try:
            import cryptography  # noqa: F401
        except ImportError as error:
            raise MissingPackageError(
                "masks=... needs the package cryptography, at the sites as well: pip install 'hierfl[privacy]'."
            ) from error
        return MaskOrder(int(self.least), int(self.bits), secrets.token_hex(8))


def require_means(problem: CompiledProblem, algorithm: Algorithm) -> None:
    """Require an algorithm whose server forms means of whole messages, and needs nothing else of them.

    Raises ``IncompatibleSolverError``, naming those that do.
    """
    name, settings = type(algorithm.settings).__name__, algorithm.settings
    against = None
    if name not in SOLVERS:
        against = "needs each client's message, not their mean"
    elif problem.scope is not None:
        against = "with a lower level needs each client's word on how well it was solved"
    elif getattr(settings, "communication", "full") != "full":
        against = "with communication='scalars' replays each client's slopes: write communication='full'"
    if against is not None:
        raise IncompatibleSolverError(
            f"masks=...: {name} {against}. They are for {', '.join(SOLVERS)} without a lower level."
        )

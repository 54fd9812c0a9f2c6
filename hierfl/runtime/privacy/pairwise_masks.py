"""``hf.runtime.PairwiseMasks``: the server sees sums over sites only, after Bonawitz et al. (2017).

Every two sites agree on a key (X25519), from which one adds and the other subtracts the same mask, so that masks cancel in the sum over
all that were asked the same. A site adds a mask of its own as well, which it tells once everybody's message is there: a message that comes
late, when the round is being made again without its site, stays hidden. A site that is lost before its message is left out, and the others
mask the numbers that they have anew; of one that is lost between its message and its own mask the others open that mask by their shares of
its key, if more than half of the sum's sites do.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt64

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError, SiteError, needing
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Algorithm

SOLVERS = ("FedAvg", "FedProx", "FedRZO", "Newton", "SCAFFOLD")
MOST_BITS = 56


class MaskOrder(NamedTuple):
    """What a run asks of its sites: the fewest of them in a sum, the binary places of numbers, and a name for the run."""

    least: int
    bits: int
    run: str

    def require_sound(self) -> None:
        """Numbers as :class:`PairwiseMasks` has them: a server may have sent any. Raises ``SettingError`` for others."""
        PairwiseMasks(self.least, self.bits)

    def told(self, sums: int, error: float) -> dict[str, Any]:
        """What the result says of it, with the number of sums that were opened, and a bound on the rounding of a mean."""
        return {
            "mechanism": "pairwise masks (X25519, HKDF, ChaCha20) modulo 2^64, and one of each site's own, of which the others have shares",
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

    For FedAvg, FedProx, SCAFFOLD, Newton and FedRZO (``communication="full"``) without a lower level, whose servers need nothing but means. A site
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

    Examples
    --------
    >>> masks = hf.runtime.PairwiseMasks(least=3)
    """

    least: int = 3
    bits: int = 40

    def __post_init__(self) -> None:
        for name, first, last in (("least", 2, 10**9), ("bits", 1, MOST_BITS)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not first <= value <= last:
                hint = ": a sum over one site hides nothing" if name == "least" else ""
                allowed = f"a whole number from {first} on{hint}, at most {last}"
                raise SettingError(f"{name}={value!r} of PairwiseMasks: {allowed}.")

    def order(self, problem: CompiledProblem, algorithm: Algorithm) -> MaskOrder:
        """What a run with these masks asks of its sites."""
        require_means(problem, algorithm)
        with needing("masks=... needs the package cryptography, at the sites as well: pip install 'hierfl[privacy]'."):
            import cryptography  # noqa: F401
        return MaskOrder(int(self.least), int(self.bits), secrets.token_hex(8))


def require_means(problem: CompiledProblem, algorithm: Algorithm) -> None:
    """The server forms means of whole messages, and needs no more of them. Raises ``IncompatibleSolverError``."""
    name, settings = type(algorithm.settings).__name__, algorithm.settings
    against = None
    if name not in SOLVERS:
        against = "needs each client's message, not their mean"
    elif problem.scope is not None:
        against = "with a lower level needs each client's word on how well it was solved"
    elif getattr(settings, "communication", "full") != "full":
        against = "with communication='scalars' replays each client's slopes: write communication='full'"
    if against is not None:
        covered = f"They are for {', '.join(SOLVERS)} without a lower level."
        raise IncompatibleSolverError(f"masks=...: {name} {against}. {covered}")


KEY = 32  # bytes
SHARE, SEALED = 66, 82  # bytes of a share, and of a sealed one
PRIME = 2**521 - 1  # of the field in which a key is shared
LOG = logging.getLogger("hierfl.site")  # owners may compare keys: the server hands them on


class Masking(NamedTuple):
    """Which attempt at a sum an answer is for, the public keys of its sites in order, and all clients in it."""

    attempt: int
    keys: tuple[bytes, ...]
    clients: tuple[int, ...]


def enough(sites: int) -> int:
    """How many of a sum's sites open the mask of one that has gone: more than half of all, so that no two halves open two sums."""
    return sites // 2 + 1


class SiteMasks:
    """A site's keys and masks in one run. Every attempt is masked once; its own mask is told for the last attempt alone.

    Without the latter two a server that asks again could subtract one message from another. What is asked is in every mask that two sites
    share, so that those that were asked for different things cancel with nobody's; and a question whose sum was opened has no second one.
    """

    def __init__(self, order: MaskOrder) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.order, self._private = order, X25519PrivateKey.generate()
        self.public: bytes = self._private.public_key().public_bytes_raw()
        self._agreed: dict[bytes, bytes] = {}
        self._last, self._own, self._place = Masking(-1, (), ()), b"", (-1, -1)
        self._opened = (-1, -1)  # the round and the call of the last sum of which this site has told its mask, or another's
        self.opened = 0  # how many there were

    def masked(
        self, numbers: np.ndarray, masking: Masking | None, place: tuple[int, int], asked: bytes
    ) -> tuple[UInt64[np.ndarray, " d"], bytes]:
        """The numbers under the masks of an attempt, and sealed shares of the key of this site's own mask.

        ``place`` is the round and the call of the question, ``asked`` a mark of all that the sites of the sum have to be asked alike.

        Raises ``SiteError`` for an attempt that was masked before, one among too few sites or without this one, a question whose sum was opened,
        and numbers out of range.
        """
        if masking is None or masking.attempt <= self._last.attempt:
            raise SiteError("this run's messages are masked, each sum once: the server asked for one without, or again")
        if place <= self._opened:
            raise SiteError("the sum of this question was opened, and a second one would tell who is not in both")
        keys, count = set(masking.keys), len(masking.keys)
        if self.public not in keys or len(keys) != count or count < self.order.least:
            raise SiteError(f"a sum has to be over this site and others, {self.order.least} or more, each once")
        total = checked(numbers, self.order.bits, count)
        self._last, self._own, self._place = masking, secrets.token_bytes(KEY), place
        total = total + stream(self._own, masking.attempt, total.size)
        others = sorted(keys - {self.public})
        for other in others:
            mask = stream(self._key_with(other, b"masks" + asked), masking.attempt, total.size)
            total = total + mask if self.public < other else total - mask
        if enough(count) >= count:
            return total, b""  # nobody is left who could open it
        shares = shares_of(self._own, count - 1, enough(count))
        return total, b"".join(self._cipher(self.public, other).encrypt(_nonce(self._last.attempt), share, None) for share, other in zip(shares, others))

    def own_mask(self, attempt: int) -> bytes:
        """The key of this site's own mask. Raises ``SiteError`` for any attempt but the last."""
        self._open(attempt)
        return self._own

    def share(self, attempt: int, other: bytes, sealed: bytes) -> bytes:
        """This site's share of the key of a lost site's mask. Raises ``SiteError`` for another attempt or share."""
        from cryptography.exceptions import InvalidTag

        if other == self.public or other not in self._last.keys:
            raise SiteError("the server asked for a share of a site that is not in the sum")
        try:
            opened: bytes = self._cipher(other, self.public).decrypt(_nonce(attempt), sealed, None)
        except InvalidTag:
            raise SiteError("the server sent a share that was not sealed for this site and sum") from None
        self._open(attempt)
        return opened

    def has_opened(self, index: int) -> bool:
        """Whether the latest sum of which this site has told a mask was one of this round."""
        return self._opened[0] == index

    def _open(self, attempt: int) -> None:
        if attempt != self._last.attempt:
            raise SiteError("the server asked to open a sum that was given up")
        self.opened, self._opened = self.opened + (self._opened != self._place), self._place

    def _cipher(self, sender: bytes, receiver: bytes) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        other = receiver if sender == self.public else sender
        return ChaCha20Poly1305(self._key_with(other, b"shares" + sender + receiver))

    def _key_with(self, other: bytes, use: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        if other not in self._agreed:
            told = (sha256(key).hexdigest()[:16] for key in (self.public, other))
            LOG.info("masks: this site's public key is %s, that of another one %s", *told)
            self._agreed[other] = self._private.exchange(X25519PublicKey.from_public_bytes(other))
        info = b"hierfl, run " + self.order.run.encode() + b": " + use
        return HKDF(SHA256(), KEY, None, info).derive(self._agreed[other])


def _nonce(attempt: int) -> bytes:
    return attempt.to_bytes(12, "little")


def shares_of(key: bytes, count: int, least: int) -> list[bytes]:
    """So many shares of a key, of which ``least`` tell it, and fewer nothing (Shamir, 1979): values of a polynomial at 1, ..., count."""
    polynomial = [int.from_bytes(key), *(secrets.randbelow(PRIME) for _ in range(least - 1))]
    values = (sum(c * pow(at, k, PRIME) for k, c in enumerate(polynomial)) % PRIME for at in range(1, count + 1))
    return [value.to_bytes(SHARE) for value in values]


def key_from(shares: Mapping[int, bytes]) -> bytes | None:
    """The key again, from enough of its shares by their places 1, 2, ...; None where they are of none."""
    total = 0
    for at, share in shares.items():
        weight = 1
        for other in shares:
            weight = weight if other == at else weight * other * pow(other - at, -1, PRIME) % PRIME
        total = (total + weight * int.from_bytes(share)) % PRIME
    return total.to_bytes(KEY) if total < 2 ** (8 * KEY) else None


def stream(key: bytes, attempt: int, count: int) -> UInt64[np.ndarray, " count"]:
    """So many numbers of ChaCha20's key stream; no key serves two attempts with the same nonce."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    nonce = (0).to_bytes(4, "little") + _nonce(attempt)  # the block counter, then the nonce
    drawn = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(drawn, "<u8").astype(np.uint64)


CHECKS = 2  # numbers beside those that are summed: 1, and whether any was cut off


def checked(numbers: np.ndarray, bits: int, parts: int) -> UInt64[np.ndarray, " d"]:
    """A site's numbers in whole multiples of 2^-bits, and two more by which the sum tells whether all masks cancel, and whether a site's were cut.

    Those beyond the range are cut off there, and what is no number is 0: a refusal would tell of one site's numbers alone.
    """
    most, cut = 2.0 ** (62 - bits) / parts, False
    if numbers.dtype != np.int64:
        inside = np.clip(np.nan_to_num(numbers, nan=0.0, posinf=most, neginf=-most), -most, most)
        cut, numbers = not np.array_equal(inside, numbers), inside
    return np.concatenate([whole(numbers, bits, parts), whole(np.array([1.0, float(cut)]), bits, parts)])


def whole(numbers: np.ndarray, bits: int, parts: int) -> UInt64[np.ndarray, " d"]:
    """Whole multiples of 2^-bits, modulo 2^64; int64 ones are. Raises ``SiteError`` where a sum could go round."""
    if numbers.dtype == np.int64:
        return numbers.view(np.uint64)
    scaled = np.ldexp(numbers, bits)
    if not np.all(np.abs(scaled) <= 2.0**62 / parts):
        most = 2.0 ** (62 - bits) / parts
        raise SiteError(f"its sum is not finite, or beyond {most:.3g}: take fewer bits of PairwiseMasks")
    return np.rint(scaled).astype(np.int64).view(np.uint64)


def opened(
    messages: Sequence[UInt64[np.ndarray, " d"]], own: Iterable[bytes], attempt: int, bits: int
) -> Float[np.ndarray, " d"]:
    """The sum of what was masked in an attempt, with the keys of all sites' own masks."""
    total = np.sum(messages, axis=0, dtype=np.uint64)
    for key in own:
        total = total - stream(key, attempt, total.size)
    return np.ldexp(total.view(np.int64).astype(float), -bits)

"""Numbers as whole ones modulo 2^64, and the masks that hide them: what a site adds, and what the server takes off again."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt64

from hierfl.errors import SiteError
from hierfl.runtime.privacy.pairwise_masks import MaskOrder

KEY = 32  # bytes
LOG = logging.getLogger("hierfl.site")  # owners may compare keys: the server hands them on


class Masking(NamedTuple):
    """What a question says of the masks of its answer: which attempt at a sum it is, and the public keys of all sites in it, in order."""

    attempt: int
    keys: tuple[bytes, ...]


class SiteMasks:
    """A site's keys and masks in one run. Every attempt is masked once; its own mask is told for the last attempt alone.

    Without the latter two a server that asks again could subtract one message from another.
    """

    def __init__(self, order: MaskOrder) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.order, self._private = order, X25519PrivateKey.generate()
        self.public: bytes = self._private.public_key().public_bytes_raw()
        self._shared: dict[bytes, bytes] = {}
        self._attempt, self._own = -1, b""
        self._told = -1
        self.opened = 0  # sums of which this site has told its mask

    def masked(self, numbers: np.ndarray, masking: Masking | None) -> UInt64[np.ndarray, " d"]:
        """The numbers under the masks of an attempt.

        Raises ``SiteError`` for an attempt that was masked before, one among too few sites or without this one, and
        numbers out of range.
        """
        if masking is None or masking.attempt <= self._attempt:
            raise SiteError("this run's messages are masked, each sum once: the server asked for one without, or again")
        keys, count = set(masking.keys), len(masking.keys)
        if self.public not in keys or len(keys) != count or count < self.order.least:
            raise SiteError(f"a sum has to be over this site and others, {self.order.least} or more, each once")
        total = whole(numbers, self.order.bits, len(masking.keys))
        self._attempt, self._own = masking.attempt, secrets.token_bytes(KEY)
        total = total + stream(self._own, masking.attempt, numbers.size)
        for other in keys - {self.public}:
            mask = stream(self._key_with(other), masking.attempt, numbers.size)
            total = total + mask if self.public < other else total - mask
        return total

    def own_mask(self, attempt: int) -> bytes:
        """The key of this site's own mask.

        Raises ``SiteError`` for any attempt but the last.
        """
        if attempt != self._attempt:
            raise SiteError("the server asked to open a sum that was given up")
        self.opened, self._told = self.opened + (self._told != attempt), attempt
        return self._own

    def _key_with(self, other: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        if other not in self._shared:
            told = (sha256(key).hexdigest()[:16] for key in (self.public, other))
            LOG.info("masks: this site's public key is %s, that of another one %s", *told)
            agreed = self._private.exchange(X25519PublicKey.from_public_bytes(other))
            info = b"hierfl pairwise masks, run " + self.order.run.encode()
            self._shared[other] = HKDF(SHA256(), KEY, None, info).derive(agreed)
        return self._shared[other]


def stream(key: bytes, attempt: int, count: int) -> UInt64[np.ndarray, " count"]:
    """So many numbers of ChaCha20's key stream; no key serves two attempts with the same nonce."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    nonce = (0).to_bytes(4, "little") + attempt.to_bytes(12, "little")  # the block counter, then the nonce
    drawn = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(drawn, "<u8").astype(np.uint64)


def whole(numbers: np.ndarray, bits: int, parts: int) -> UInt64[np.ndarray, " d"]:
    """Numbers as the nearest whole multiples of 2^-bits, modulo 2^64; int64 ones are whole already.

    Raises ``SiteError`` for numbers that are not finite, or so large that a sum of so many parts could go round.
    """
    if numbers.dtype == np.int64:
        return numbers.view(np.uint64)
    scaled = np.ldexp(numbers, bits)
    if not np.all(np.abs(scaled) <= 2.0**62 / parts):
        raise SiteError(
            f"its sum is not finite, or beyond {2.0 ** (62 - bits) / parts:.3g}: take fewer bits of PairwiseMasks"
        )
    return np.rint(scaled).astype(np.int64).view(np.uint64)


def opened(
    messages: Sequence[UInt64[np.ndarray, " d"]], own: Iterable[bytes], attempt: int, bits: int
) -> Float[np.ndarray, " d"]:
    """The sum of what was masked in an attempt, with the keys of all sites' own masks."""
    total = np.sum(messages, axis=0, dtype=np.uint64)
    for key in own:
        total = total - stream(key, attempt, total.size)
    return np.ldexp(total.view(np.int64).astype(float), -bits)

"""What crosses a site's socket file: a frame is a mark, a length, and so many bytes of a letter.

Of the standard library alone: Flower's process at a node, where a copy of this file lies beside the app, imports nothing of hierfl.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

MARK = b"hierfl\0\1"  # the version of frames at its end
HEAD = struct.Struct(">8sQ")
LARGEST = 1 << 31  # bytes of a letter
SECONDS = 30.0  # that a frame may take from its first byte to its last
CHUNK = 1 << 16  # bytes that are waited for at once: memory is taken for what has arrived


class FrameError(Exception):
    """What arrived is no frame, or did not arrive in time."""


def dial(path: str) -> socket.socket:
    """A connection to the site that listens at a socket file."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        caller.connect(path)
    except BaseException:
        caller.close()
        raise
    return caller


def send_frame(connection: socket.socket, letter: bytes, seconds: float | None = None) -> None:
    """Send a letter; without ``seconds`` the other side may take its time to read it."""
    connection.settimeout(seconds)
    connection.sendall(HEAD.pack(MARK, len(letter)))
    connection.sendall(letter)


def receive_frame(connection: socket.socket) -> bytes:
    """The letter that comes next, however long that takes. Raises ``FrameError`` for anything but a frame."""
    return receive_bytes(connection, receive_length(connection, None))


def receive_length(connection: socket.socket, patience: float | None) -> int:
    """The length of the letter that comes next; ``patience`` are the seconds until it begins, None for any number.

    Raises ``FrameError`` for anything but the head of a frame, or if nothing came in time.
    """
    connection.settimeout(patience)
    try:
        first = connection.recv(1)
    except TimeoutError:
        raise FrameError("said nothing in time") from None
    mark, length = HEAD.unpack(first + receive_bytes(connection, HEAD.size - len(first)))
    if mark != MARK:
        raise FrameError("does not speak as hierfl's callers do")
    if length > LARGEST:
        raise FrameError(f"announced {length:,} bytes, more than {LARGEST:,}")
    return int(length)


def receive_bytes(connection: socket.socket, count: int, hold: Callable[[int], None] = lambda _: None) -> bytes:
    """So many bytes, in time; ``hold`` is told of each part. Raises ``FrameError`` if they do not come."""
    arrived, until = bytearray(), time.monotonic() + SECONDS
    while missing := count - len(arrived):
        try:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            connection.settimeout(left)
            part = connection.recv(min(missing, CHUNK))
        except TimeoutError:
            raise FrameError(f"{missing:,} of {count:,} bytes did not come in time") from None
        if not part:
            raise FrameError(f"was gone with {missing:,} of {count:,} bytes still to come")
        hold(len(part))
        arrived += part
    return bytes(arrived)

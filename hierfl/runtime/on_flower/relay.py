"""A SuperNode's part in a run of hierfl: it hands each message to the site's own process on this machine, and its answer back.

The data, the rules, what clients remember and what is compiled are with the site's process, which listens at a socket file and lives from
message to message, where Flower starts a process for each. Its place comes from this node's own configuration: ``socket`` alone where the
owner runs ``hierfl site --socket``; with ``problem`` and ``data`` beside it the site is started here, and ends with the SuperNode.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from hierfl.runtime.on_flower.site_frames import dial, receive_frame, send_frame
from hierfl.runtime.sites.letter_bytes import letter_bytes, read_letter

OPTIONS = (  # of hierfl site
    *("problem", "data", "name", "algorithms", "min-samples", "max-rounds", "max-messages", "shared-seeds"),
    *("min-noise", "min-sum", "rules", "ledger", "ledger-key", "keep", "log"),
)
STARTING = 120.0  # seconds that a site's process may take until it listens

app = ClientApp()


@app.query()
def hand_on(message: Message, context: Context) -> Message:
    """Hand a message on, and its answer back."""
    letter = as_bytes(message.content)
    with connected(context.node_config) as site:
        send_frame(site, letter)
        return Message(as_content(receive_frame(site)), reply_to=message)


def connected(config: Mapping[str, Any]) -> socket.socket:
    """A connection to the site's process, started where none listens and it is said how. Raises ``RuntimeError``."""
    if "socket" not in config:
        raise RuntimeError("this node has no site: --node-config 'socket=\"/path/of/site.sock\"'")
    path = str(config["socket"])
    try:
        return dial(path)
    except (FileNotFoundError, ConnectionRefusedError):
        if not {"problem", "data"} <= config.keys():
            raise RuntimeError("no site listens at this node's socket: start it, hierfl site --socket ...") from None
    given = {name: config[name] for name in OPTIONS if config.get(name, False) is not False}
    options = [word for name, value in given.items() for word in (f"--{name}", *(() if value is True else (str(value),)))]
    command = [sys.executable, "-m", "hierfl.command.main", "site", "--socket", path, *options]
    command += ["--parent-pid", str(os.getppid())]
    site = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + STARTING
    while time.monotonic() < until:
        try:
            return dial(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if site.poll() is not None:
                raise RuntimeError("this node's site could not start: the SuperNode's output says why") from None
            time.sleep(0.05)
    site.kill()
    raise RuntimeError(f"this node's site did not start within {STARTING:g} s")


def as_bytes(content: RecordDict) -> bytes:
    """Flower's records as the bytes of a letter."""
    words, arrays = content["words"], content["arrays"]
    return letter_bytes(dict(words.items()), {name: array.numpy() for name, array in arrays.items()})


def as_content(letter: bytes) -> RecordDict:
    """The bytes of a letter as Flower's records."""
    try:
        words, arrays = read_letter(letter)
    except ValueError as error:
        raise ValueError(f"this node's site sent a message that is no letter: {error}") from error
    named = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    return RecordDict({"words": ConfigRecord(words), "arrays": named})

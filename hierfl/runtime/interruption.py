"""Ctrl-C as a wish to end: a run that is kept ends after its block of rounds, with a result; a second Ctrl-C ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STDERR = 2
TOLD = b"\nhierfl: the run ends after this block of rounds; Ctrl-C once more ends it now, at the latest checkpoint.\n"


class Interruption:
    """Whether Ctrl-C was pressed; ``asked`` stays False where nobody listens."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Listen within, in the main thread (no other hears of signals) and where nobody else has asked to be told."""
        alone = threading.current_thread() is threading.main_thread()
        if not alone or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def ask(*_: Any) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            os.write(STDERR, TOLD)  # print() may be what was interrupted

        signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

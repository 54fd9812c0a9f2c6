"""Wishes to end what goes on, by Ctrl-C or a limit of time, heard where the work is done.

An exception that Ctrl-C raises wherever Python happens to be may be swallowed there: by JAX's hook of garbage collection, by a function on
the host that a compiled program calls. So Ctrl-C only leaves a mark. Loops on the host, functions that compiled programs call, and blocks
of rounds look at it, and at the clock, and end by ``CutShort``. The main thread, where it does not look in time, is interrupted: again and
again, until the exception has got out.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from jax._src.core import reset_trace_state, trace_state_clean

INTERRUPTED, TIME_IS_UP = "interrupted", "time limit reached"
PATIENCE = 0.5  # seconds that work has to come to an end by itself, such as that of a round
AGAIN = 0.05  # seconds until the main thread is interrupted once more
SWALLOWING = {"_xla_gc_callback", "_remove", "__del__"}  # functions, in which nothing can be raised
STDERR = 2
TOLD = b"\nhierfl: ending with what there is; Ctrl-C once more ends it at once.\n"


class CutShort(KeyboardInterrupt):
    """Work is given up before it was done, since somebody wished it or its time is up."""


class Wish:
    """Whether what goes on within is to end, and why.

    Its time is up at ``until``, by ``time.perf_counter``; it has ``patience`` seconds to end by itself, until it is interrupted. Once ``met`` nobody need
    look any more: what is left to do ends by itself.
    """

    def __init__(self, until: float, patience: float, asked: float | None) -> None:
        self.until, self.patience, self.met = until, patience, False
        self.asked = asked  # when
        self.owner = threading.get_ident()
        self.closed = threading.Event()

    @property
    def reason(self) -> str | None:
        """Why it is to end: ``INTERRUPTED`` or ``TIME_IS_UP``; None where it may go on."""
        if self.asked is not None:
            return INTERRUPTED
        return TIME_IS_UP if time.perf_counter() >= self.until else None

    @property
    def over(self) -> bool:
        """Whether it is to end now."""
        return not self.met and self.reason is not None

    @property
    def overdue(self) -> bool:
        """Whether it was to end so long ago that it is not waited for any more."""
        return self.over and time.perf_counter() >= self._due

    @property
    def since(self) -> float:
        """When it is to end, or was: infinite where nobody says so."""
        return self.until if self.asked is None else min(self.until, self.asked)

    @property
    def _due(self) -> float:
        return self.since + self.patience

    def insist(self) -> None:
        """Have the main thread interrupted once this is overdue, until it is left."""
        if self.patience < math.inf and self.owner == threading.main_thread().ident and signal.getsignal(signal.SIGINT) is _hear:
            threading.Thread(target=self._insist, daemon=True, name="hierfl: waits for an end").start()

    def _insist(self) -> None:
        while not self.closed.wait(max(self._due - time.perf_counter(), 0.0)):
            with _LOCK:
                if _OPEN.get(self.owner, (None,))[-1] is self and self.overdue and not _STATE.sent:
                    _STATE.sent = True
                    signal.pthread_kill(self.owner, signal.SIGINT)
            self.closed.wait(AGAIN)


class _State:
    """Whether a signal of our own is on its way to the main thread, and how many ask there not to be interrupted by it now."""

    sent, unbroken = False, 0


_STATE, _LOCK = _State(), threading.Lock()
_OPEN: dict[int, tuple[Wish, ...]] = {}  # by thread, the innermost last


def _hear(_: int, frame: FrameType | None) -> None:
    """What SIGINT calls, in the main thread."""
    wishes = _OPEN.get(threading.get_ident(), ())
    if _STATE.sent:
        _STATE.sent = False
        if wishes and wishes[-1].overdue and not _STATE.unbroken and not _swallows(frame):
            raise CutShort
        return
    if not wishes or any(wish.asked is not None for wish in wishes):
        raise KeyboardInterrupt
    for wish in wishes:
        wish.asked = time.perf_counter()
        wish.insist()
    if not wishes[-1].patience:
        if _STATE.unbroken:
            return
        raise CutShort
    os.write(STDERR, TOLD)  # print() may be what was interrupted


def _swallows(frame: FrameType | None) -> bool:
    """Whether an exception would be swallowed here: in what is called when an object is no more."""
    for _ in range(3):
        if frame is None:
            return False
        if frame.f_code.co_name in SWALLOWING:
            return True
        frame = frame.f_back
    return False


@contextmanager
def unbroken() -> Iterator[None]:
    """Not to be interrupted by force within, which looks by itself whether it is overdue; a second Ctrl-C interrupts all the same."""
    mine = threading.current_thread() is threading.main_thread()
    _STATE.unbroken += mine
    try:
        yield
    finally:
        _STATE.unbroken -= mine


@contextmanager
def heeded(until: float = math.inf, patience: float = math.inf, *, anew: bool = False) -> Iterator[Wish]:
    """Hear of wishes to end within: of a time after which it is to, and of Ctrl-C in the main thread, where nobody else has asked to be told.

    Within another one, what that was asked is asked here as well, unless this begins ``anew``.
    """
    here, before, computes = threading.get_ident(), _OPEN.get(threading.get_ident(), ()), trace_state_clean()
    wish = Wish(until, patience, before[-1].asked if before and not anew else None)
    listens = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    _OPEN[here] = (*before, wish)
    if listens:
        signal.signal(signal.SIGINT, _hear)
    try:
        if until < math.inf or wish.asked is not None:
            wish.insist()
        yield wish
    finally:
        with _LOCK:  # nothing more is sent for it
            _leave(here, before)
            wish.closed.set()
        if wish.owner == threading.main_thread().ident:
            _await_what_was_sent()
        if listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if computes:  # an interruption where JAX enters or leaves a trace has it trace whatever comes after
            reset_trace_state()


def _leave(thread: int, before: tuple[Wish, ...]) -> None:
    if before:
        _OPEN[thread] = before
    else:
        _OPEN.pop(thread, None)


def _await_what_was_sent() -> None:
    """Have a signal of our own that is on its way arrive, so that nobody else is hit by it."""
    until = time.perf_counter() + 1.0
    while _STATE.sent and time.perf_counter() < until:
        time.sleep(1e-4)


@contextmanager
def impatient() -> Iterator[None]:
    """What may be interrupted after a while, since whoever calls it then goes on with what there is: a part of what is ``heeded``."""
    around = present_wishes()
    with heeded(around[-1].until, PATIENCE) if around else nullcontext():
        yield


@contextmanager
def whole() -> Iterator[None]:
    """What is of no use in part: Ctrl-C ends it by a ``KeyboardInterrupt``, even where runs within it ended with results."""
    with heeded(patience=PATIENCE):
        yield
        heed()


@contextmanager
def heeded_unless_within() -> Iterator[None]:
    """Hear of Ctrl-C, which ends what is done within at once by a ``KeyboardInterrupt`` that nothing swallows; nothing new within another."""
    if threading.get_ident() in _OPEN:
        yield
    else:
        with heeded(patience=0.0):
            yield


def present_wishes() -> tuple[Wish, ...]:
    """The wishes that this thread works under, the innermost last."""
    return _OPEN.get(threading.get_ident(), ())


@contextmanager
def working_under(wishes: tuple[Wish, ...]) -> Iterator[None]:
    """Work for another thread, under its wishes."""
    here, before = threading.get_ident(), present_wishes()
    if wishes:
        _OPEN[here] = wishes
    try:
        yield
    finally:
        _leave(here, before)


def reason() -> str | None:
    """Why what this thread does is to end; None where it may go on, and where nobody listens."""
    wishes = present_wishes()
    return wishes[-1].reason if wishes else None


def _heard() -> list[Wish]:
    """The wish that this thread works under. In a thread of somebody else's, which works for nobody knows whom, those of all threads."""
    return [wishes[-1] for wishes in (present_wishes(),) if wishes] or [w[-1] for w in tuple(_OPEN.values())]


def over() -> bool:
    """Whether what this thread does is to end; everything, where it works for nobody knows whom."""
    heard = _heard()
    return bool(heard) and all(wish.over for wish in heard)


def overdue() -> bool:
    """Whether it was to end so long ago that it cannot come to an end of its own any more."""
    heard = _heard()
    return bool(heard) and all(wish.overdue for wish in heard)


def heed() -> None:
    """Go on, unless it is to end.

    Raises ``CutShort`` where it is.
    """
    if over():
        raise CutShort


def rest() -> None:
    """From here on what goes on in this part ends by itself, and soon."""
    for wish in present_wishes()[-1:]:
        wish.met = True

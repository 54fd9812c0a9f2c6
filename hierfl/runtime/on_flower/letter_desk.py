"""Where a site reads letters: each is a message of the run's own algorithm, or it is refused and the owner's log says why.

What the algorithm's steps are sent is found by tracing the server's program of a round; nothing else is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import HierflError, SiteError
from hierfl.jaxtools.keyed_random import key_of
from hierfl.jaxtools.precision import computing
from hierfl.runtime.on_flower.letters import (
    SERVER,
    Hello,
    Introduction,
    Letter,
    asked_of,
    keep_of,
    letter_of,
    message_of,
    start_of,
)
from hierfl.runtime.sites.parcels import Asked, Refusal, Unmask
from hierfl.runtime.sites.rounds import present_in
from hierfl.runtime.sites.site import NO_RUN, Site, SiteRun
from hierfl.runtime.sites.site_clients import Wire
from hierfl.runtime.sites.site_programs import SitePrograms

Steps = dict[tuple[str, str], list[Any]]  # by kind and name: trees of jax.ShapeDtypeStruct of (broadcast, each)


class Noting(Wire):
    """A wire on which nothing is sent: it notes what would be."""

    def __init__(self) -> None:
        self.steps: Steps = {}

    def note(self, kind: str, name: str, broadcast: Any, each: Any) -> None:
        """Note the shapes of one message."""
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), (broadcast, each))
        known = self.steps.setdefault((kind, name), [])
        if shapes not in known:
            known.append(shapes)


def step_messages(problem: CompiledProblem, algorithm: Any, x0: np.ndarray) -> Steps:
    """The messages of a round, and of the run's own value at its end, by kind and name of their steps."""
    with computing(double=True):
        noting = Noting()
        programs = SitePrograms(problem, algorithm, tracing=noting)
        state, data, index = algorithm.init(jnp.asarray(x0)), problem.laid_out(), jnp.asarray(0)
        size = algorithm.cohorts.size
        some, everyone = (present_in(np.arange(n), n) for n in (size, problem.num_clients))
        given = (programs.tables, state, data)
        jax.eval_shape(programs.round(), *given, some, everyone, key_of(0), index)
        jax.eval_shape(programs.own_value(), *given, everyone, key_of(0), index, jnp.asarray(x0))
        return noting.steps


LOG = logging.getLogger("hierfl.site")


class LetterDesk:
    """Answers letters for a site.

    Parameters
    ----------
    site
        With its data and its owner's rules.
    read_solver
        Makes a solver of its text, and runs nothing else.
    """

    def __init__(self, site: Site, read_solver: Callable[[str], Any]) -> None:
        self.site, self.read_solver = site, read_solver
        self._steps: tuple[SiteRun, Steps] | None = None  # of the run asked last

    def answer(self, parcel: bytes) -> bytes:
        """Answer one letter by another."""
        reply = self._reply(parcel)
        sent = letter_of(reply).as_bytes()
        self.site.tell(reply, len(sent))
        return sent

    def _reply(self, parcel: bytes) -> Any:
        try:
            letter = Letter.from_bytes(parcel)
            kind, server = letter.words.get("message"), str(letter.words.get(SERVER, ""))
            if kind == Hello.__name__:
                return Introduction(self.site.name, tuple(self.site.held))
            if kind == "Start":
                return self.site.respond(start_of(letter, self.read_solver), server)
            if kind == "Asked":
                return self._step(letter, server)
            if kind == "Keep":
                return self.site.respond(keep_of(letter, set(self.site.held)), server)
            if kind == "Unmask":
                return self.site.respond(message_of(letter, Unmask), server)
            raise SiteError(f"a message of the kind {kind!r}, which no run sends.")
        except HierflError as error:
            LOG.warning("%s: refused: %s", self.site.name, error)
            return Refusal(str(error), failed=True)
        except Exception as error:
            LOG.exception("%s: failed", self.site.name)
            return Refusal(f"{type(error).__name__}, which the site's own log has in full", failed=True)

    def _step(self, letter: Letter, server: str) -> Any:
        run = self.site.run(server)
        if run is None:
            return NO_RUN
        if self._steps is None or self._steps[0] is not run:
            self._steps = (run, step_messages(run.problem, run.algorithm, run.x0))
        message: Asked = asked_of(letter, self._steps[1], set(self.site.held))
        return self.site.respond(message, server)

"""What an algorithm's steps are sent: found at a site by tracing the server's program of a round, and nothing else is answered."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.jaxtools.keyed_random import key_of
from hierfl.jaxtools.precision import computing
from hierfl.runtime.sites.rounds import present_in
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

"""The iterate that a theorem is about: one drawn at random before the run, every local step of it being as likely.

[NN] Proposition 1, [2S] Theorems 1 and 2 and [HFL] Theorem 1 bound E|grad f^eta|^2 at x_k*, with k* uniform over the local steps of
all rounds (over the rounds for [HFL]); none of them says anything of the last iterate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hierfl.analysis.theorems import Prescription, TheoremPoint
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import on_upper_set
from hierfl.run_settings import RunSettings
from hierfl.runtime.contract import Algorithm
from hierfl.runtime.in_process.execution import InProcess

STREAM = 0x7E0  # apart from the streams of the run's own draws


class DrawnStep(NamedTuple):
    """k* as a round and a local step in it; the mean of the clients' iterates there."""

    round: int
    local_step: int

    @property
    def rounds(self) -> int:
        """The rounds that a run makes up to there, the last of them cut short."""
        return self.round + (self.local_step > 0)

    @classmethod
    def of(cls, theory: Prescription, rounds: int, seed: int) -> DrawnStep:
        """Drawn from the run's seed, of the local steps of all rounds."""
        steps = 1 if theory.iterations is None else int(theory.local_steps)
        drawn = int(np.random.default_rng([STREAM, seed]).integers(rounds * steps))
        return cls(*divmod(drawn, steps))


def theorem_point(
    compiled: CompiledProblem,
    algorithm: Algorithm,
    drawn: DrawnStep,
    start: np.ndarray,
    seed: int,
    settings: RunSettings,
) -> TheoremPoint:
    """x_k*, by running once more as far as it: clients then stop, and the server takes their mean as at the end of a round."""
    cut = algorithm if drawn.local_step == 0 else algorithm.cut_short(drawn.round, drawn.local_step)
    runtime, block = settings.runtime or InProcess(), settings.evaluate_every
    outcome = runtime.execute(compiled, cut, start, drawn.rounds, seed, block, lambda *_: None)
    iterate = np.asarray(cut.decision(outcome.state), float)
    x = on_upper_set(compiled, iterate[None])[0]
    return TheoremPoint(
        x=compiled.upper.unflatten(x),
        iterate=compiled.upper.unflatten(iterate),
        value=compiled.sign * float(compiled.exact.at(x).value),
        round=drawn.round,
        local_step=drawn.local_step,
    )

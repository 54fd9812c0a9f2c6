"""``hf.runtime.GaussianNoise``: clients' messages are clipped, and noise is added to them at their sites, before they leave.

The guarantee is local: it holds against the server, and against whoever sees all that crosses. What a client sends in a round is a
function of its own data and of what was broadcast, clipped in length, so that no two contents of its data move it by more than twice the
clip; with independent Gaussian noise on every message a run is a composition of Gaussian mechanisms, each chosen in view of those before
(Dwork and Roth, 2014). That the server knows who takes part leaves no amplification by sampling, and none is claimed. Epsilon is told
by Google's accountant (the package dp-accounting, of the extra ``hierfl[privacy]``).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, MissingPackageError, SettingError
from hierfl.jaxtools.keyed_random import fold_in, key_of
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Algorithm

STEPS = {"FedAvg": "local_steps", "FedProx": "local_steps", "FedRZO": "local_steps", "ZOHFL": "answer"}
LEAST = 1e-3  # below it the noise is no noise, and the clip is no number of the noise's resolution
SHARED = "central, of each client: all its data, or any other of as many rows, to a server that sees sums and keeps to the protocol, with {} colluding sites at most"
RELATION = "local, of each client: all its data, or any other of as many rows (sensitivity 2 clip), to whoever sees its messages"


class NoiseOrder(NamedTuple):
    """What a run asks of its sites: the setting, the most messages of a client, and a name for the run."""

    clip: float
    multiplier: float
    delta: float
    releases: int
    run: str
    shared: bool = False
    colluding: int = 0

    def require_sound(self) -> None:
        """Require numbers as :class:`GaussianNoise` has them: an order comes from a server that may have sent anything.

        Raises ``SettingError`` for any other.
        """
        GaussianNoise(self.clip, self.multiplier, self.delta, self.shared, self.colluding)
        if self.releases < 0:
            raise SettingError(f"releases={self.releases!r} of a run with noise: from 0 on.")

    def told(self, released: int) -> dict[str, Any]:
        """What the result says of it, with the most messages that a client was asked for."""
        return {
            "mechanism": f"discrete Gaussian noise on clipped messages, at the sites{', which share it' if self.shared else ''}",
            "clip": self.clip,
            "multiplier": self.multiplier,
            "delta": self.delta,
            "epsilon": epsilon_of(self.multiplier, self.releases, self.delta),
            "releases": self.releases,
            "released": released,
            "relation": SHARED.format(self.colluding) if self.shared else RELATION,
            "accountant": library(),
            "withheld": "what clients would say of their objectives and residuals",
        }


@suggests_names
@dataclass(frozen=True)
class GaussianNoise:
    """Differential privacy of each client against the server, for ``hf.runtime.Dask(noise=...)`` and ``Delayed(noise=...)``.

    Every message of a client is clipped to the length ``clip``, and noise of standard deviation ``multiplier * clip`` is added to each of
    its numbers at the client's site, from the operating system's randomness there. Two data sets of a client, of as many rows each,
    are then told apart by nobody better than (epsilon, delta) allows, whatever else they know; ``result.settings["privacy"]`` has the
    epsilon of the run, in which every client sends as many messages as the seed's draws of participants can ask of it.

    For FedAvg and FedProx (a message is a client's move), FedRZO (its move, or its slopes with ``communication="scalars"``) and ZO-HFL (its
    differences of f), without a lower level that all clients answer together. What a client says of its objective is withheld,
    so that the history has none. Server data, the numbers of rows and the time that an answer takes are not protected.

    Parameters
    ----------
    clip
        The largest length of a message that passes unchanged, C > 0, in the units of the message.
    multiplier
        The noise's standard deviation over the clip. Local noise is added by every client, so that m of them average it to
        multiplier * clip / sqrt(m).
    delta
        In (0, 1), well below one over the number of clients.
    shared
        With :class:`PairwiseMasks`: each site adds no more than its part, so that the mean over the clients of a sum carries about as much
        noise as one client's message would carry alone. The guarantee is then about sums, against a server that keeps to the protocol.
    colluding
        With ``shared``, the most sites in a sum that tell the server their part of the noise, or add none.

    Raises
    ------
    SettingError
        For settings out of range, and with what makes more messages than a run's own.
    MissingPackageError
        When a run begins, without the extra ``hierfl[privacy]``.
    IncompatibleSolverError
        When a run begins, for another algorithm.
    """

    clip: float
    multiplier: float
    delta: float = 1e-5
    shared: bool = False
    colluding: int = 1

    def __post_init__(self) -> None:
        for name in ("clip", "multiplier", "delta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < value < np.inf:
                raise SettingError(f"{name}={value!r} of GaussianNoise: a positive number.")
        if self.multiplier < LEAST:
            raise SettingError(
                f"multiplier={self.multiplier!r} of GaussianNoise: at least {LEAST}, less protects nothing."
            )
        if not isinstance(self.shared, bool):
            raise SettingError(f"shared={self.shared!r} of GaussianNoise: True or False.")
        if isinstance(self.colluding, bool) or not isinstance(self.colluding, (int, np.integer)) or self.colluding < 0:
            raise SettingError(f"colluding={self.colluding!r} of GaussianNoise: a whole number of sites from 0 on.")
        if self.delta >= 1:
            raise SettingError(f"delta={self.delta!r} of GaussianNoise: in (0, 1), well below one over the clients.")

    def order(self, problem: CompiledProblem, algorithm: Algorithm, rounds: int, seed: int) -> NoiseOrder:
        """What a run with this noise asks of its sites."""
        require_covered(problem, algorithm)
        releases = planned_releases(algorithm, problem.num_clients, rounds, seed)
        library()
        run, colluding = secrets.token_hex(8), int(self.colluding) if self.shared else 0
        numbers = float(self.clip), float(self.multiplier), float(self.delta)
        return NoiseOrder(*numbers, releases, run, self.shared, colluding)


def require_covered(problem: CompiledProblem, algorithm: Algorithm) -> str:
    """The step whose messages are noised; a clip bounds all that another algorithm's clients say, but it could not go on with it.

    Raises ``IncompatibleSolverError``, naming the algorithms that are covered.
    """
    name = type(algorithm.settings).__name__
    covered = "it is for FedAvg, FedProx, FedRZO and ZOHFL, without a lower level that all clients answer together"
    if name not in STEPS:
        raise IncompatibleSolverError(
            f"noise=...: {name} would carry the noise of its messages on from round to round; {covered}."
        )
    if problem.scope == "federation":
        raise IncompatibleSolverError(
            f"noise=...: the messages by which clients solve their common lower level would leave without noise; {covered}."
        )
    if getattr(algorithm, "sends_answers", False):
        raise IncompatibleSolverError(
            "noise=...: ZOHFL sends the lower level's answers here, not differences, and clipped answers are no answers. Write "
            'communication="scalars".'
        )
    return STEPS[name]


def planned_releases(algorithm: Algorithm, clients: int, rounds: int, seed: int) -> int:
    """In how many rounds the client takes part that is drawn most often: from the seed alone, so that no data have a say in it."""
    cohorts = algorithm.cohorts
    if cohorts.everybody or not rounds:
        return rounds
    key, places = key_of(seed), jnp.arange(cohorts.size)

    def more(index: Any, counts: Array) -> Array:
        cohort = cohorts.of(fold_in(key, index), index)
        return counts.at[cohort.participants].add(places < cohort.count)

    return int(jnp.max(jax.lax.fori_loop(0, rounds, more, jnp.zeros(clients, int))))


def require_one_run(noise: GaussianNoise | None, solver: Any, settings: Any) -> None:
    """Require a solve whose only messages are those of one run, each round made once: an epsilon is of these.

    Raises ``SettingError``, naming what would ask clients for more.
    """
    if noise is None:
        return
    step = getattr(solver, "step_size", None)
    refused = {
        "rounds=None has no number of messages before it ends, and looks at objectives, which are withheld: give rounds": settings.rounds
        is None,
        "tolerance=... compares moves with gradient steps, and clipped ones are none: leave it out": settings.tolerance
        is not None,
        "a run that goes on from a checkpoint asks for messages of the same rounds again: leave checkpoint out": settings.checkpoint
        is not None,
        "each of several runs has an epsilon of its own, and they add up: solve one by one, and compose them": settings.several,
        'step_size="auto" makes trial runs: give a step, such as one found on data that are no secret': isinstance(
            step, str
        )
        and step == "auto",
        'the iterate of a theorem takes a second run: write schedule="practical", with the same numbers': getattr(
            solver, "schedule", "practical"
        )
        != "practical",
    }
    for reason, refuse in refused.items():
        if refuse:
            raise SettingError(f"noise=...: {reason}.")


SENSITIVITY = 2.0  # in clips: the data of a client replaced by others


def _accounting() -> ModuleType:
    try:
        import dp_accounting.rdp
    except ImportError as error:
        raise MissingPackageError(
            "noise=... needs the packages dp-accounting and opendp: pip install 'hierfl[privacy]'."
        ) from error
    module: ModuleType = dp_accounting
    return module


def library() -> str:
    """The accountant, its version, and what it composes by.

    Raises ``MissingPackageError`` if it is not installed.
    """
    _accounting()
    return f"dp-accounting {version('dp-accounting')}, Renyi differential privacy"


def epsilon_of(multiplier: float, releases: int, delta: float) -> float:
    """The epsilon of so many messages of a client, each with noise of ``multiplier`` times the clip.

    The discrete Gaussian has the Renyi divergences of the continuous one as upper bounds (Canonne, Kamath and Steinke, 2020, Proposition 5),
    so that these, and not a curve of the continuous one's own, are what is composed.
    """
    if not releases:
        return 0.0
    accounting = _accounting()
    accountant = accounting.rdp.RdpAccountant()  # the event below says the sensitivity, whatever the relation is called
    accountant.compose(accounting.GaussianDpEvent(multiplier / SENSITIVITY), releases)
    return float(accountant.get_epsilon(delta))

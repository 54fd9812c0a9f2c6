"""``hf.runtime.GaussianNoise``: clients' messages are clipped, and noise is added to them at their sites, before they leave.

The guarantee is local: it holds against the server, and against whoever sees all that crosses. What a client sends in a round is a
function of its own data and of what was broadcast, clipped in length, so that no two contents of its data move it by more than twice the
clip; with independent Gaussian noise on every message a run is a composition of Gaussian mechanisms, each chosen in view of those before
(Dwork and Roth, 2014). That the server knows who takes part leaves no amplification by sampling, and none is claimed.

Epsilon is the smallest that Google's accountant can vouch for (the package dp-accounting, of the extra ``hierfl[privacy]``). Messages with
Gaussian noise, each asked for in view of those before, tell no more than one with as much precision as all of them have together; so also
where the multipliers of later runs are chosen in view of earlier ones, as long as a site stops at its budget (a filter of Gaussian
differential privacy: Koskela, Tobaben and Honkela, 2023). The curve of that one is its privacy loss distribution's.

Sites send the discrete Gaussian in whole multiples of 1/s of its deviation, s >= 2^30, and the curve is the continuous one's. Rounded to whole
multiples, that one is a function of a Gaussian mechanism's answer. Number by number the discrete one is at most e^(1/24s^2) times as likely as the
rounded one (Jensen's inequality), and this one within 40 deviations at most e^(40^2/24s^2) times as likely as the discrete one; beyond them it
hardly ever is, e^-800. So N numbers add less than 2^-53 N to epsilon. (Their total variation, below 2^-64 N, would bound the same, but
times e^epsilon in delta.) Of sums of discrete Gaussians, noise that sites share, Renyi's divergences are composed.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int64

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError, SiteError, needing
from hierfl.jaxtools.keyed_random import fold_in, key_of
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Algorithm
from hierfl.runtime.privacy.pairwise_masks import MaskOrder, PairwiseMasks

SENSITIVITY = 2.0  # in clips: the data of a client replaced by others
MOST_NUMBERS = 2**40  # for which the bounds above are, all together; drawing them takes months
A_NUMBER = 2.0**-53  # what one adds to epsilon
KEPT_BACK = 2.0**-20  # of delta, for the tails
FINEST, RELATIVE = 1e-7, 1e-4  # intervals of privacy losses, and over epsilon: they cost a ten-millionth of it
LARGEST = 500.0  # beyond it losses are no floating-point numbers, and Renyi's divergences say the same
LEAST_PRECISION = 1e-18  # what tells less is counted as much


class Spent(NamedTuple):
    """Messages of a client: so many, of so many numbers each, with noise of ``multiplier`` times the clip, which sites may have ``shared``."""

    multiplier: float
    releases: int
    numbers: int
    shared: bool = False


class Composed(NamedTuple):
    """An epsilon, and which accountant vouches for it."""

    epsilon: float
    accountant: str


def composed(spent: Iterable[Spent], delta: float) -> Composed:
    """The epsilon of all of these messages together. Raises ``MissingPackageError`` without dp-accounting."""
    messages = [own for own in spent if own.releases]
    if not messages:
        return Composed(0.0, "none, since nothing is sent")
    package = accounting()
    renyi, losses = (f"dp-accounting {version('dp-accounting')}, {by}" for by in ("Renyi differential privacy", "privacy loss distributions"))
    shared = any(own.shared for own in messages)
    precision = sum(own.releases * (SENSITIVITY / own.multiplier) ** 2 for own in messages)
    event = package.GaussianDpEvent(1.0 / math.sqrt(max(precision, LEAST_PRECISION)))  # which says the sensitivity, whatever the relation is called
    by_renyi = package.rdp.RdpAccountant().compose(event).get_epsilon(delta)
    numbers = sum(own.releases * own.numbers for own in messages)
    if shared or by_renyi > LARGEST or numbers > MOST_NUMBERS:
        return Composed(float(by_renyi), renyi)
    interval = max(FINEST, RELATIVE * by_renyi)
    accountant = package.pld.PLDAccountant(value_discretization_interval=interval).compose(event)
    by_losses = accountant.get_epsilon(delta * (1.0 - KEPT_BACK)) + numbers * A_NUMBER
    return min(Composed(float(by_losses), losses), Composed(float(by_renyi), renyi))


def accounting() -> ModuleType:
    """The accountant's package. Raises ``MissingPackageError`` if it is not installed."""
    with needing("noise=... needs the packages dp-accounting and opendp: pip install 'hierfl[privacy]'."):
        import dp_accounting.pld
        import dp_accounting.rdp
    return dp_accounting


STEPS = {"FedAvg": "local_steps", "FedProx": "local_steps", "FedRZO": "local_steps", "ZOHFL": "answer"}
LEAST = 1e-3  # below it the noise is no noise, and the clip is no number of the noise's resolution
SUMS_SEEN = "a server that sees sums and keeps to the protocol, with {} colluding sites at most"
SHARED = f"central, of each client: all its data, or any other of as many rows, to {SUMS_SEEN}"
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
        """Numbers as :class:`GaussianNoise` has them: a server may have sent any. Raises ``SettingError`` for others."""
        GaussianNoise(self.clip, self.multiplier, self.delta, self.shared, self.colluding)
        if self.releases < 0:
            raise SettingError(f"releases={self.releases!r} of a run with noise: from 0 on.")

    def spent(self, releases: int, numbers: int) -> Spent:
        """So many messages of a client, of so many numbers each, as they are accounted for."""
        return Spent(self.multiplier, releases, numbers, self.shared)

    def told(self, released: int, numbers: int, earlier: float | None) -> dict[str, Any]:
        """What the result says of it, where clients were asked for ``released`` messages at most, of so many numbers each.

        ``earlier`` is the largest epsilon that a site says it has come to with this run and all earlier ones; None where none says so.
        """
        epsilon, accountant = composed([self.spent(self.releases, numbers)], self.delta)
        return {
            "mechanism": f"discrete Gaussian noise on clipped messages, at the sites{', which share it' if self.shared else ''}",
            "clip": self.clip,
            "multiplier": self.multiplier,
            "delta": self.delta,
            "epsilon": epsilon,
            "epsilon_with_earlier_runs": earlier,
            "releases": self.releases,
            "released": released,
            "relation": SHARED.format(self.colluding) if self.shared else RELATION,
            "adversary": SUMS_SEEN.format(self.colluding) if self.shared else "whoever sees all messages of the client",
            "accountant": accountant,
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
        ``multiplier * clip / sqrt(m)``.
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

    Examples
    --------
    >>> noise = hf.runtime.GaussianNoise(clip=1.0, multiplier=8.0, delta=1e-5)
    """

    _elsewhere: ClassVar[dict[str, str]] = {
        "epsilon": "it follows from multiplier, rounds and participation, and result.settings['privacy'] tells it: raise multiplier to lower it.",
    }

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
            raise SettingError(f"multiplier={self.multiplier!r} of GaussianNoise: at least {LEAST}, less is no protection.")
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
        accounting()
        run, colluding = secrets.token_hex(8), int(self.colluding) if self.shared else 0
        numbers = float(self.clip), float(self.multiplier), float(self.delta)
        return NoiseOrder(*numbers, releases, run, self.shared, colluding)


def require_covered(problem: CompiledProblem, algorithm: Algorithm) -> str:
    """The step whose messages are noised. Raises ``IncompatibleSolverError``, naming the algorithms that are covered."""
    name = type(algorithm.settings).__name__
    covered = "it is for FedAvg, FedProx, FedRZO and ZOHFL, without a lower level that all clients answer together"
    against = None
    if name not in STEPS:
        against = f"{name} would carry the noise of its messages on from round to round; {covered}."
    elif problem.scope == "federation":
        against = f"the messages by which clients solve their common lower level would leave without noise; {covered}."
    elif problem.asks_all:
        parts = "the clients' parts in the mean that an upper constraint is on would leave without noise"
        against = f"{parts}. Give each client, or row, a condition of its own."
    elif getattr(algorithm, "sends_answers", False):
        answers = "ZOHFL sends the lower level's answers here, not differences, and clipped answers are no answers"
        against = f'{answers}. Write communication="scalars".'
    if against is not None:
        raise IncompatibleSolverError(f"noise=...: {against}")
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
    """A solve is one run, each round made once: an epsilon is of these. Raises ``SettingError``, naming what is more."""
    if noise is None:
        return
    step = getattr(solver, "step_size", None)
    refused = (
        (settings.rounds is None, "rounds=None has no number of messages before it ends, and looks at objectives, which are withheld: give rounds"),
        (settings.tolerance is not None, "tolerance=... compares moves with gradient steps, and clipped ones are none: leave it out"),
        (settings.checkpoint is not None, "a run that goes on from a checkpoint asks for messages of the same rounds again: leave checkpoint out"),
        (settings.several, "each of several runs has an epsilon of its own, and they add up: solve one by one, and compose them"),
        (isinstance(step, str), 'step_size="auto" makes trial runs: give a step, such as one found on data that are no secret'),
        (
            getattr(solver, "schedule", "practical") != "practical",
            'the iterate of a theorem takes a second run: write schedule="practical", with the same numbers',
        ),
    )
    for refuse, reason in refused:
        if refuse:
            raise SettingError(f"noise=...: {reason}.")


BITS = 30  # the grid is finer than the noise's standard deviation by 2^BITS
SLACK = 2.0**-30  # relative: more than the rounding of a length, so that a clipped message is not longer than the clip


class Releases:
    """How many messages of each client there were, of at most so many; the same question asked again is no new one.

    ``before`` is how many there may have been of each, of which nothing more is known.
    """

    def __init__(self, most: int, before: int = 0) -> None:
        self.most, self.before, self.counts = most, before, dict[int, int]()
        self._last: dict[int, Hashable] = {}

    @property
    def largest(self) -> int:
        return max(self.counts.values(), default=self.before)

    def count(self, clients: Sequence[int], questions: Sequence[Hashable]) -> list[int] | None:
        """Those whose question is a new one, counted; None, and nobody is, where one of them has none left."""
        new = [client for client, question in zip(clients, questions) if self._last.get(client) != question]
        if any(self.counts.get(client, self.before) >= self.most for client in new):
            return None
        for client in new:
            self.counts[client] = self.counts.get(client, self.before) + 1
        self._last.update(zip(clients, questions))
        return new


class NoisedMessages:
    """The messages of one run that leave a site."""

    def __init__(self, order: NoiseOrder, step: str, before: int = 0) -> None:
        self.order, self.step = order, step
        self.releases = Releases(order.releases, before)
        self.grid, self.scale = grid_of(order.clip * order.multiplier)
        self._sent: dict[int, Float[np.ndarray, " d"]] = {}  # each client's last message

    def require(self, kind: str, step: str) -> None:
        """Require a question whose answers are noised. Raises ``SiteError`` for any other."""
        if kind != "map" or step != self.step:
            raise SiteError(f"this run's messages are noised, those of {step!r} would not be")

    def of(self, clients: Sequence[int], questions: Sequence[Hashable], payload: Any) -> Any:
        """The payload as it may leave, an old question answered as before. Raises ``SiteError`` where none is left."""
        new, rows = self._new(clients, questions), rows_of(payload, len(clients))
        leaves, tree = jax.tree.flatten(payload)
        for row, client in enumerate(clients):
            if client in new:
                self._sent[client] = noised(clipped(rows[row], self.order.clip), self.grid, self.scale)
            rows[row] = self._sent[client]
        ends = np.cumsum([math.prod(np.shape(leaf)[1:]) for leaf in leaves])[:-1]
        parts = [part.reshape(np.shape(leaf)) for part, leaf in zip(np.split(rows, ends, axis=1), leaves)]
        return jax.tree.unflatten(tree, parts)

    def _new(self, clients: Sequence[int], questions: Sequence[Hashable]) -> list[int]:
        new = self.releases.count(clients, questions)
        if new is None:
            raise SiteError(f"clients of this site have sent the {self.releases.most} messages of a run with this noise")
        return new


def rows_of(payload: Any, clients: int) -> Float[np.ndarray, "clients d"]:
    """The numbers of each client's message."""
    return np.concatenate([np.asarray(leaf, float).reshape(clients, -1) for leaf in jax.tree.leaves(payload)], axis=1)


def clipped(message: Float[np.ndarray, " d"], clip: float) -> Float[np.ndarray, " d"]:
    """The message scaled to the length ``clip`` where it is longer; zero where it has no length, since it must say nothing of why."""
    largest = float(np.max(np.abs(message), initial=0.0))
    if not math.isfinite(largest):
        return np.zeros_like(message)
    if largest == 0.0:
        return message
    shrunk = message / largest  # no overflow
    length, bound = float(np.sqrt(np.sum(shrunk * shrunk))), clip * (1.0 - SLACK)
    return message if length * largest <= bound else shrunk * (bound / length)


def grid_of(deviation: float) -> tuple[float, float]:
    """A power of two, and the deviation in multiples of it: about 2^BITS."""
    grid = 2.0 ** (math.floor(math.log2(deviation)) - BITS)
    return grid, deviation / grid


def noised(message: Float[np.ndarray, " d"], grid: float, scale: float) -> Float[np.ndarray, " d"]:
    """The message, rounded towards zero on the grid so that it grows no longer, with noise in whole multiples of it."""
    return discrete_gaussian(np.trunc(message / grid).astype(np.int64), scale).astype(float) * grid


def discrete_gaussian(whole: Int64[np.ndarray, " d"], scale: float) -> Int64[np.ndarray, " d"]:
    """Whole numbers with discrete Gaussian noise of this deviation.

    OpenDP samples exactly (Canonne, Kamath and Steinke, 2020) from the operating system's randomness: floating-point Gaussians
    give away in their last digits what they were added to (Mironov, 2012).

    Raises ``MissingPackageError``: without OpenDP.
    """
    with needing("noise=... needs the packages dp-accounting and opendp at every site: pip install 'hierfl[privacy]'."):
        import opendp.prelude as opendp
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T="i64")), opendp.l2_distance(T="f64")
    mechanism = opendp.m.make_gaussian(*space, scale=scale)
    return np.asarray(mechanism(whole.tolist()), np.int64)


FINE = 1000.0  # the least deviation of a site's noise, in multiples of the resolution
FAR = 50.0  # deviations beyond which no noise is


def part_of(noise: NoiseOrder, masks: MaskOrder, shares: Float[np.ndarray, " m"]) -> float:
    """The deviation of a site's noise, in the masks' resolutions. Raises ``SettingError`` where that does not fit, or a sum could go round."""
    honest = masks.least - noise.colluding
    if honest < 1:
        given = f"GaussianNoise(colluding={noise.colluding}) and PairwiseMasks(least={masks.least})"
        raise SettingError(f"{given}: one site of a sum at least keeps its noise to itself; take a larger least.")
    part = float(np.ldexp(noise.multiplier * noise.clip * float(np.max(shares)), masks.bits) / np.sqrt(honest))
    if part < FINE:
        part_of_noise = f"a site's part of the noise has a deviation of {part:.3g} resolutions, of {FINE:g} that are needed"
        more = int(np.ceil(np.log2(FINE / part)))
        raise SettingError(f"PairwiseMasks(bits={masks.bits}): {part_of_noise}: take {more} more bits, or more.")
    if not np.ldexp(noise.clip, masks.bits) + FAR * part * len(shares) <= 2.0**62:
        raise SettingError(f"PairwiseMasks(bits={masks.bits}): noise and clip are too large for them, take fewer.")
    return part


def orders_of(
    noise: GaussianNoise | None,
    masks: PairwiseMasks | None,
    problem: CompiledProblem,
    algorithm: Algorithm,
    rounds: int,
    seed: int,
) -> tuple[NoiseOrder | None, MaskOrder | None]:
    """What a run asks of its sites. Raises ``SettingError`` for noise that is shared without masks that fit to it."""
    masking = None if masks is None else masks.order(problem, algorithm)
    noising = None if noise is None else noise.order(problem, algorithm, rounds, seed)
    if noising is None or not noising.shared:
        return noising, masking
    if masking is None:
        raise SettingError(
            "GaussianNoise(shared=True): a part of the noise is enough where the server sees sums alone: give masks=hf.runtime.PairwiseMasks()."
        )
    weights = problem.declaration.client_weights
    part_of(noising, masking, weights / np.sum(weights))
    return noising, masking


class SharedNoise(NoisedMessages):
    """A site's part in one run: the sum of its clients' messages, with its part of the noise."""

    def __init__(self, order: NoiseOrder, step: str, masks: MaskOrder, shares: Float[np.ndarray, " m"], before: int = 0) -> None:
        super().__init__(order, step, before)
        self.bits, self.shares = masks.bits, shares
        self.part = part_of(order, masks, shares)

    def summed(
        self, clients: Sequence[int], questions: Sequence[Hashable], payload: Any, withheld: int
    ) -> Int64[np.ndarray, " d"]:
        """The sum to be masked, and zeros in places of what is withheld. Of one round one attempt at most is opened, each with noise of its own.

        Raises ``SiteError`` if a client has sent all that the run may ask of it.
        """
        self._new(clients, questions)
        rows = rows_of(payload, len(clients))
        total = np.zeros(rows.shape[1], np.int64)
        for row, client in zip(rows, clients):
            total += in_whole(clipped(row, self.order.clip), float(self.shares[client]), self.bits)
        return np.concatenate([discrete_gaussian(total, self.part), np.zeros(withheld, np.int64)])


def in_whole(message: Float[np.ndarray, " d"], share: float, bits: int) -> Int64[np.ndarray, " d"]:
    """A share of a message in whole numbers of the resolution, none further from zero than it was."""
    return np.trunc(np.ldexp(share * message, bits)).astype(np.int64)

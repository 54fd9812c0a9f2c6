"""What noised messages tell together: the smallest epsilon that Google's accountant (the package dp-accounting) can vouch for.

Messages with Gaussian noise, each asked for in view of those before, tell no more than one with as much precision as all of them have together; so also
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
from collections.abc import Iterable
from importlib.metadata import version
from types import ModuleType
from typing import NamedTuple

from hierfl.errors import needing

SENSITIVITY = 2.0  # in clips: the data of a client replaced by others
MOST_NUMBERS = 2**40  # for which the bounds above are, all together; drawing them takes months
A_NUMBER = 2.0**-53  # what one adds to epsilon
KEPT_BACK = 2.0**-20  # of delta, for the tails
FINEST, RELATIVE = 1e-7, 1e-4  # intervals of privacy losses, and over epsilon: they cost a ten-millionth of it
LARGEST = 500.0  # beyond it losses are no floating-point numbers, and Renyi's divergences say the same
LEAST = 1e-18  # precision: what tells less is counted as much


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
    """The epsilon of all of these messages together.

    Raises ``MissingPackageError`` without the package dp-accounting.
    """
    messages = [own for own in spent if own.releases]
    if not messages:
        return Composed(0.0, "none, since nothing is sent")
    package = accounting()
    renyi, losses = (f"dp-accounting {version('dp-accounting')}, {by}" for by in ("Renyi differential privacy", "privacy loss distributions"))
    shared = any(own.shared for own in messages)
    precision = sum(own.releases * (SENSITIVITY / own.multiplier) ** 2 for own in messages)
    event = package.GaussianDpEvent(1.0 / math.sqrt(max(precision, LEAST)))  # which says the sensitivity, whatever the relation is called
    by_renyi = package.rdp.RdpAccountant().compose(event).get_epsilon(delta)
    numbers = sum(own.releases * own.numbers for own in messages)
    if shared or by_renyi > LARGEST or numbers > MOST_NUMBERS:
        return Composed(float(by_renyi), renyi)
    interval = max(FINEST, RELATIVE * by_renyi)
    accountant = package.pld.PLDAccountant(value_discretization_interval=interval).compose(event)
    by_losses = accountant.get_epsilon(delta * (1.0 - KEPT_BACK)) + numbers * A_NUMBER
    return min(Composed(float(by_losses), losses), Composed(float(by_renyi), renyi))


def accounting() -> ModuleType:
    """The accountant's package.

    Raises ``MissingPackageError`` if it is not installed.
    """
    with needing("noise=... needs the packages dp-accounting and opendp: pip install 'hierfl[privacy]'."):
        import dp_accounting.pld
        import dp_accounting.rdp
    return dp_accounting

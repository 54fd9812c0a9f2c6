"""The epsilon of a run with noise, by Google's accountant (the package dp-accounting, of the extra ``hierfl[privacy]``)."""

from __future__ import annotations

from importlib.metadata import version
from types import ModuleType

from hierfl.errors import MissingPackageError

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

    Raises
    ------
    MissingPackageError
        If it is not installed.
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

"""All reproductions by name; what one of them needs is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module

from hierfl.errors import SettingError
from hierfl.near_names import near_names
from hierfl.reproduce.reproduction import Reproduction

MODULES = {
    "2s-table4": "cournot_table",
    "2s-fig5": "cournot_figure",
}


def reproduction_of(name: str) -> Reproduction:
    """The reproduction of this name.

    Raises
    ------
    SettingError
        For a name that there is not, with the nearest.
    """
    if name not in MODULES:
        raise SettingError(f"there is no reproduction {name!r}: {near_names(name, MODULES)}")
    found: Reproduction = import_module(f"hierfl.reproduce.{MODULES[name]}").REPRODUCTION
    return found


def every_reproduction() -> list[Reproduction]:
    """All of them, in the order of the list."""
    return [reproduction_of(name) for name in MODULES]

"""All reproductions by name; what one of them needs is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from hierfl.errors import AbsentDataError, MissingPackageError, SettingError
from hierfl.models.image_data import load_images
from hierfl.near_names import near_names
from hierfl.reproduce.reproduction import DataSets, Reproduction

MODULES = {
    "hfl-table1": "heterogeneous.heterogeneous_table",
    "hfl-fig2": "heterogeneous.heterogeneous_figure",
    "hfl-few-samples": "heterogeneous.few_samples",
    "nn-fig1": "networks.relu_steps_figure",
    "2s-fig2": "networks.softplus_figure",
    "2s-fig3": "networks.neurons_figure",
    "2s-fig4": "networks.bilevel_figure",
    "2s-table4": "market.cournot_table",
    "2s-fig5": "market.cournot_figure",
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


def find_data(reproduction: Reproduction, folder: Path | None, download: bool) -> DataSets:
    """The data sets that a reproduction would use and that are there, with scikit-learn's digits, and why others are absent.

    Nothing is fetched unless ``download``.

    Raises
    ------
    DataError
        If files are there and cannot be read.
    """
    found, absent = {}, {}
    for name in (*reproduction.data, *(["digits"] if reproduction.data else [])):
        try:
            found[name] = load_images(name, folder, download)
        except (AbsentDataError, MissingPackageError) as error:
            absent[name] = str(error)
    return DataSets(found, absent)

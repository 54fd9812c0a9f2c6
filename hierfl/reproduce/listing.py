"""All reproductions by name; what one of them needs is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from hierfl.errors import AbsentDataError, MissingPackageError, SettingError
from hierfl.models.image_data import load_images
from hierfl.near_names import near_names
from hierfl.reproduce.reproduction import DataSets, Reproduction

PLACES = {
    "hfl-table1": "heterogeneous.heterogeneous_table:REPRODUCTION",
    "hfl-fig2": "heterogeneous.heterogeneous_figure:REPRODUCTION",
    "hfl-few-samples": "heterogeneous.few_samples:REPRODUCTION",
    "nn-fig1": "networks.relu_figures:BY_STEPS",
    "2s-fig2": "networks.relu_figures:BESIDE_SOFTPLUS",
    "2s-fig3": "networks.relu_figures:BY_NEURONS",
    "2s-fig4": "networks.bilevel_figure:REPRODUCTION",
    "2s-table4": "cournot:TABLE",
    "2s-fig5": "cournot:FIGURE",
}


def reproduction_of(name: str) -> Reproduction:
    """The reproduction of this name.

    Raises ``SettingError`` for a name that there is not, with the nearest.
    """
    if name not in PLACES:
        raise SettingError(f"there is no reproduction {name!r}: {near_names(name, PLACES)}")
    module, _, attribute = PLACES[name].partition(":")
    found: Reproduction = getattr(import_module(f"hierfl.reproduce.{module}"), attribute)
    return found


def every_reproduction() -> list[Reproduction]:
    """All of them, in the order of the list."""
    return [reproduction_of(name) for name in PLACES]


def find_data(reproduction: Reproduction, folder: Path | None, download: bool) -> DataSets:
    """The data sets that a reproduction would use and that are there, with scikit-learn's digits, and why others are absent.

    Nothing is fetched unless ``download``.

    Raises ``DataError`` if files are there and cannot be read.
    """
    found, absent = {}, {}
    for name in (*reproduction.data, *(["digits"] if reproduction.data else [])):
        try:
            found[name] = load_images(name, folder, download)
        except (AbsentDataError, MissingPackageError) as error:
            absent[name] = str(error)
    return DataSets(found, absent)

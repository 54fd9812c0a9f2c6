"""Image data for the examples: MNIST where it is, by download, or scikit-learn's bundled digits."""

from __future__ import annotations

import os

from hierfl.models import ClassificationData
from hierfl.models.image_data import DATA_VARIABLE, load_images


def load(folder: str | None = None, download: bool = False) -> tuple[str, ClassificationData]:
    """(name, data): MNIST from ``folder`` or the environment's ``HIERFL_DATA``, by download, else the bundled digits.

    Raises
    ------
    DataError
        If a folder is given that has no MNIST files, or they cannot be read.
    """
    name = "MNIST" if folder or download or os.environ.get(DATA_VARIABLE) else "digits"
    return name, load_images(name, folder, download)

"""Image data for the examples: MNIST from a folder of idx.gz files, by download, or scikit-learn's bundled digits."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

from hierfl.errors import DataError
from hierfl.models import ClassificationData

FILES = {
    "features": ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"),
    "labels": ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}


def load(folder: str | None = None, download: bool = False) -> tuple[str, ClassificationData]:
    """(name, data): MNIST from ``folder`` or the environment's ``HIERFL_DATA``, by download, else the bundled digits.

    Pixels are kept as bytes, and the losses see them scaled to [0, 1]; the training and test files of MNIST are pooled
    (70,000 images).

    Raises
    ------
    DataError
        If a folder is given that has no MNIST files.
    """
    folder = folder or os.environ.get("HIERFL_DATA")
    if folder:
        return "MNIST", read_mnist(Path(folder))
    if download:
        return "MNIST", _download_mnist()
    return "digits", _bundled_digits()


def read_mnist(folder: Path) -> ClassificationData:
    """MNIST's four idx.gz files, in ``folder`` or its subfolder ``mnist``.

    Raises
    ------
    DataError
        Naming the file that is missing or malformed.
    """
    home = folder if (folder / FILES["labels"][0]).exists() else folder / "mnist"
    arrays = {name: np.concatenate([_read_idx(home / file) for file in files]) for name, files in FILES.items()}
    images = arrays["features"]
    return ClassificationData(images.reshape(len(images), -1), arrays["labels"].astype(int), scale=255.0)


def _read_idx(path: Path) -> np.ndarray:
    if not path.exists():
        raise DataError(
            f"no file {path}: give the folder that holds {', '.join(f for files in FILES.values() for f in files)}."
        )
    with gzip.open(path, "rb") as file:
        content = file.read()
    if content[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an idx file of unsigned bytes.")
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _download_mnist() -> ClassificationData:
    from sklearn.datasets import fetch_openml

    images, labels = fetch_openml("mnist_784", version=1, return_X_y=True, as_frame=False)
    return ClassificationData(np.asarray(images).astype(np.uint8), np.asarray(labels).astype(int), scale=255.0)


def _bundled_digits() -> ClassificationData:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return ClassificationData(np.asarray(images).astype(np.uint8), np.asarray(labels), scale=16.0)

"""Safe ends of the spectrum of a symmetric linear map that is known through its products with vectors.

Below a size limit the matrix is formed and its computed eigenvalues are moved outward by a bound on the rounding; a
diagonal map is read off. Larger maps get an upper bound from a nonnegative majorant (Collatz and Wielandt). Nothing here
is an estimate: the lower end is never above, the upper end never below the true one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hierfl.atoms.intervals import EPS

DENSE_LIMIT = 1200
_PERRON_STEPS = 40

Products = Callable[[np.ndarray], np.ndarray]  # (k, size) vectors -> (k, size) products


@dataclass(frozen=True)
class Edge:
    """One end of a spectrum, by which rule, and a unit vector that attains it up to rounding where one is known."""

    value: float
    rule: str
    vector: np.ndarray | None = None


def smallest(products: Products, size: int, terms: int = 1) -> Edge | None:
    """A lower bound on the smallest eigenvalue; None where the map is large and not diagonal.

    Parameters
    ----------
    products
        Applies the map to the rows of an array.
    size
        The dimension of the map.
    terms
        The number of terms that are added up in a product (rows of data), for the rounding.
    """
    diagonal = _diagonal(products, size)
    if diagonal is not None:
        place = int(np.argmin(diagonal))
        return Edge(_down(float(diagonal[place]), diagonal, size, terms), "diagonal Hessian", _axis(place, size))
    if size > DENSE_LIMIT:
        return None
    values, vectors = np.linalg.eigh(_matrix(products, size))
    return Edge(_down(float(values[0]), values, size, terms), "smallest eigenvalue, less its rounding", vectors[:, 0])


def largest(products: Products, size: int, terms: int = 1, dominating: Products | None = None) -> Edge | None:
    """An upper bound on the largest eigenvalue (for symmetric maps); arguments as for :func:`smallest`.

    ``dominating`` are the products of a map whose matrix is an entrywise bound on the absolute values of this one's.
    """
    diagonal = _diagonal(products, size)
    if diagonal is not None:
        place = int(np.argmax(diagonal))
        return Edge(-_down(-float(diagonal[place]), diagonal, size, terms), "diagonal Hessian", _axis(place, size))
    if size <= DENSE_LIMIT:
        values, vectors = np.linalg.eigh(_matrix(products, size))
        bound = -_down(-float(values[-1]), values, size, terms)
        return Edge(bound, "largest eigenvalue, plus its rounding", vectors[:, -1])
    return None if dominating is None else Edge(perron(dominating, size, terms), "Perron root of an entrywise bound")


def perron(products: Products, size: int, terms: int = 1) -> float:
    """An upper bound on the spectral radius of a nonnegative matrix: the least ``max_i (N v)_i / v_i`` of a power method."""
    vector, best = np.ones(size), np.inf
    for _ in range(_PERRON_STEPS):
        image = np.maximum(products(vector[None])[0], 0.0)
        if not image.any():
            return 0.0
        bound = float(np.max(image / vector))
        if bound > 0.999 * best:
            best = min(best, bound)
            break
        best = bound
        vector = np.maximum(image / image.max(), 1e-12)
    return best * (1.0 + (64 + 4 * (size + terms)) * EPS)


def _axis(place: int, size: int) -> np.ndarray:
    """The unit vector of one entry."""
    unit = np.zeros(size)
    unit[place] = 1.0
    return unit


def _matrix(products: Products, size: int) -> np.ndarray:
    """The symmetric matrix of the map."""
    matrix = products(np.eye(size))
    return 0.5 * (matrix + matrix.T)


def _diagonal(products: Products, size: int) -> np.ndarray | None:
    """The diagonal of a map that random products show to be diagonal (others pass with probability zero)."""
    probes = np.concatenate([np.ones((1, size)), np.random.default_rng(0).standard_normal((2, size))])
    images = products(probes)
    if not np.isfinite(images).all():
        return None
    negligible = 64 * EPS * np.abs(images[0])  # beside the diagonal entries of their own row, not the largest of all
    return images[0] if (np.abs(images[1:] - images[0] * probes[1:]) <= negligible).all() else None


def _down(value: float, values: np.ndarray, size: int, terms: int) -> float:
    """A computed eigenvalue less a bound on its rounding."""
    return value - (64 + 8 * size + 4 * np.sqrt(terms)) * EPS * float(np.abs(values).max(initial=0.0))

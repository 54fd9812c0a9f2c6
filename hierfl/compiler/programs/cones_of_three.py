"""Exponential and power cones, of three rows each: the nearest point with its derivative, and the rays that a multiplier leaves.

    y exp(x / y) <= z, y > 0, and its limits;        x^share y^(1 - share) >= |z|, x >= 0, y >= 0.

What is neither in the cone nor in its polar is nearest to a point of the boundary that one number tells: x / y for an exponential cone
(Friberg, 2023), |z| for a power cone (Hien, 2015).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

NEAR = 1e-7  # of a multiplier and of a ray, up to which they are orthogonal
LEAST, MOST = 1e-300, 1e150  # of the number that is looked for

Three = Float[np.ndarray, "3"]
Slope = Float[np.ndarray, "3 3"]


def nearest_exponential(v: Three) -> tuple[Three, Slope]:
    """The nearest point of the exponential cone, and its derivative; where it has none, that of one side."""
    x, y, z = (float(part) for part in v)
    inside = z > 0 and x <= y * np.log(z / y) if y > 0 else y == 0 and x <= 0 <= z
    if inside:
        return v, np.eye(3)
    if (z < 0 and np.log(x) + y / x <= 1 + np.log(-z)) if x > 0 else (x == 0 and y <= 0 and z <= 0):
        return np.zeros(3), np.zeros((3, 3))
    if x <= 0 and y <= 0:
        return np.array([x, 0.0, max(z, 0.0)]), np.diag([1.0, 0.0, float(z > 0)])

    def parts(rho: float) -> tuple[float, float]:  # v = a (rho, 1, e^rho) + b (1, 1 - rho, -e^-rho)
        size = rho * rho - rho + 1
        return ((rho - 1) * x + y) / size, (x - rho * y) / size

    def miss(rho: float) -> float:
        a, b = parts(rho)
        if rho > 0:
            return a - b * np.exp(-2 * rho) - z * np.exp(-rho)
        return a * np.exp(2 * rho) - b - z * np.exp(rho)

    ends = 1 - y / x if x else np.nan, x / y if y else np.nan  # where a and b vanish
    low = np.fmax(ends[0], ends[1] if y < 0 else np.nan) if x > 0 else -MOST
    high = np.fmin(ends[1], ends[0] if x < 0 else np.nan) if y > 0 else MOST
    rho = _root(miss, low, high)
    (a, b), fall = parts(rho), np.exp(-abs(rho))
    rises = rho > 0
    third = [1.0, -(fall**2), a + b * fall**2] if rises else [fall**2, -1.0, a * fall**2 + b]
    change = np.linalg.solve([[rho, 1.0, a], [1.0, 1 - rho, -b], third], np.diag([1.0, 1.0, fall]))  # of (a, b, rho)
    last = np.array([0.0, 0.0, 1.0]) + fall * (change[1] - b * change[2]) if rises else fall * (change[0] + a * change[2])
    point = np.array([a * rho, a, z + b * fall if rises else a * fall])
    return point, np.array([rho * change[0] + a * change[2], change[0], last])


def nearest_power(v: Three, share: float) -> tuple[Three, Slope]:
    """The same of the power cone."""
    own, size, sign = v[:2], abs(float(v[2])), np.sign(v[2])
    shares = np.array([share, 1 - share])
    if (own >= 0).all() and np.prod(own**shares) >= size:
        return v, np.eye(3)
    if (own <= 0).all() and np.prod((-own / shares) ** shares) >= size:
        return np.zeros(3), np.zeros((3, 3))
    if size == 0.0:
        return np.append(np.maximum(own, 0.0), 0.0), np.diag([*(own > 0).astype(float), 0.0])

    def roots(r: float) -> tuple[Any, Any]:
        root = np.sqrt(own**2 + 4 * shares * r * (size - r))
        long = root + np.abs(own)
        return np.where(own > 0, 0.5 * long, 2 * shares * r * (size - r) / np.where(long > 0, long, 1.0)), root

    def miss(r: float) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(r) - shares @ np.log(roots(r)[0]))

    r = _root(miss, LEAST * size, size * (1 - 1e-16))
    point, root = roots(r)
    across = shares / (point * root)
    moved = np.append(shares / root, sign * r * (shares @ across)) / (1 / r - (size - 2 * r) * (shares @ across))
    along = (shares / root)[:, None] * ((size - 2 * r) * moved + np.array([0.0, 0.0, sign * r]))
    along[:, :2] += np.diag(point / root)
    return np.append(point, sign * r), np.vstack([along, sign * moved])


def _root(rising: Any, low: float, high: float) -> float:
    """Where a function that rises vanishes, between ends that may be far away."""
    if low == -MOST:
        low = _beyond(lambda step: high - step, rising, -1.0)
    if high == MOST:
        high = _beyond(lambda step: low + step, rising, 1.0)
    if not rising(low) < 0:
        return low
    return float(brentq(rising, low, high, xtol=1e-300, rtol=1e-15, maxiter=2_000)) if rising(high) > 0 else high


def _beyond(at: Any, rising: Any, sign: float) -> float:
    step = 1.0
    while sign * rising(at(step)) < 0 and step < MOST:
        step *= 2.0
    return float(at(step))


def rays_left(kind_share: float | None, z: Three) -> list[Three]:
    """The rays that span the face of the cone on which a multiplier z, not 0, vanishes; of a power cone where a share is given."""
    first, second = np.eye(3)[:2]
    edges = [-first, np.eye(3)[2]] if kind_share is None else [first, second]
    inner: list[Three] = []
    if kind_share is None and z[0] < 0 < z[2]:
        rho = float(np.log(-z[0] / z[2]))
        inner.append(np.array([rho, 1.0, np.exp(rho)]))
    if kind_share is not None and z[0] > 0 < z[1]:
        x, y = kind_share / z[0], (1 - kind_share) / z[1]
        inner.append(np.array([x, y, -np.sign(z[2]) * x**kind_share * y ** (1 - kind_share)]))
    for some in ([ray / np.linalg.norm(ray) for ray in inner], edges):
        found = [ray for ray in some if float(z @ ray) <= NEAR * float(np.linalg.norm(z))]
        if found:
            return found
    return []

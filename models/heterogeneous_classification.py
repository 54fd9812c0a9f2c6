"""Federated classification with a global model at the server and a personal model at every client ([HFL] §IV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.language.federation.partition_schemes import Scheme


@dataclass(frozen=True)
class ClassificationData:
    """Features ``(N, d)``, integer labels ``(N,)`` in 0..classes-1.

    The losses see ``features / scale``: pixels 0..255 may be kept as bytes with ``scale=255``, in an eighth of the memory
    of their quotients and faster to gather.

    Raises
    ------
    DataError
        If ``scale`` is not a positive number.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> data = hf.models.ClassificationData(rng.standard_normal((200, 4)), rng.integers(0, 2, 200))
    """

    features: np.ndarray
    labels: np.ndarray
    scale: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.scale, bool) or not isinstance(self.scale, Real) or not 0 < self.scale < np.inf:
            raise hf.DataError(f"scale={self.scale!r}: features are divided by it; a positive number, such as 255.")

    def scaled(self, features: np.ndarray | cp.Expression) -> np.ndarray | cp.Expression:
        """Features (or the sample that stands for them) as the losses see them."""
        return features if self.scale == 1 else features / self.scale

    @property
    def onehot(self) -> np.ndarray:
        """Labels as rows of an identity matrix, ``(N, classes)``, in bytes."""
        return np.eye(int(self.labels.max()) + 1, dtype=np.uint8)[self.labels]


def cross_entropy(weights: cp.Expression, image: cp.Expression, label: cp.Expression) -> cp.Expression:
    """Multinomial cross-entropy of one sample under the linear model ``weights`` (classes, features)."""
    return cp.log_sum_exp(weights @ image) - label @ (weights @ image)


def heterogeneous_classification(
    data: ClassificationData,
    clients: int = 10,
    scheme: Scheme | None = None,
    server_fraction: float = 0.3,
    test_fraction: float = 0.1,
    lam: float = 1.0,
    mu: float = 0.1,
    radius: float | None = None,
    envelope: bool = False,
    seed: int = 0,
    weights: str | Sequence[float] = "uniform",
) -> hf.Problem:
    """Federated classification with a global model x at the server and a personal model y_i at every client ([HFL] §IV).

    Minimises the server's loss of x plus (lam/2) sum_i w_i ||x - y_i(x)||^2, where y_i(x) minimises the client's loss of y plus
    (mu/2) ||y - x||^2; losses are multinomial cross-entropies, E of own samples.

    Parameters
    ----------
    data
        The pool; ``test_fraction`` of it is held out in ``problem.federation.test``, then ``server_fraction`` of the rest
        goes to the server and the remainder to the clients.
    scheme
        Partition over the clients; default ``hf.IID()``.
    lam, mu
        Weights of the clients' term and of the proximal term below.
    radius
        If given, the personal models stay in a Frobenius ball of this radius around x.
    envelope
        The clients' term is lam times their own lower objective, so that f sums the Moreau envelopes of their losses: then the gradient of a client's term is lam * mu * (x - y_i(x)), as long as no
        constraint moves with x, and the clients' losses pull x directly. In the papers' declaration they do so only through the
        Jacobian of y_i(x), which hardly differs from the identity.
    weights
        Of the clients in the objective: ``"uniform"``, the papers' 1/m; ``"samples"``, rho_i = N_i / N over the clients ([HFL] §IV); or numbers, one for each.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> data = hf.models.ClassificationData(rng.standard_normal((200, 4)), rng.integers(0, 2, 200))
    >>> problem = hf.models.heterogeneous_classification(data, clients=3)
    """
    features, classes = data.features.shape[1], data.onehot.shape[1]
    x, y = cp.Variable((classes, features), name="x"), cp.Variable((classes, features), name="y")
    image, label = hf.Sample(features, name="image"), hf.Sample(classes, name="label")
    rho = hf.ClientParameter(nonneg=True, name="rho")
    federation = hf.Federation.split(
        {image: data.features, label: data.onehot},
        clients=clients,
        scheme=scheme or hf.IID(),
        server_fraction=server_fraction,
        test_fraction=test_fraction,
        parameters={} if radius is None else {rho: radius},
        seed=seed,
        weights=weights,
    )
    pixels = data.scaled(image)
    personal = hf.E(cross_entropy(y, pixels, label)) + 0.5 * mu * cp.sum_squares(y - x)
    return hf.Problem(
        hf.Minimize(
            server=hf.E(cross_entropy(x, pixels, label)),
            clients=lam * personal if envelope else 0.5 * lam * cp.sum_squares(x - y),
        ),
        lower=hf.ArgMin(
            y,
            personal,
            [] if radius is None else [cp.norm(y - x, "fro") <= rho],
            scope="client",
        ),
        federation=federation,
    )

"""Fair classification: a rectified network against the worst mixture of its class losses ([2S] §6.3)."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp

import hierfl as hf
from hierfl.language.federation.partition_schemes import Scheme
from hierfl.models.heterogeneous_classification import ClassificationData
from hierfl.models.relu_network import parity, squared_error


def fair_classification(
    data: ClassificationData,
    clients: int = 5,
    neurons: int = 4,
    scheme: Scheme | None = None,
    test_fraction: float = 0.1,
    lam: float = 0.1,
    simplex: bool = True,
    seed: int = 0,
    weights: str | Sequence[float] = "uniform",
) -> hf.Problem:
    """Fair classification: a rectified network against the worst mixture of its class losses ([2S] §6.3).

    Minimises over ``Z`` (neurons, features) and ``w`` (neurons,) the largest sum_c y_c l_c(Z, w) - (lam / 2) ||y||^2 of all ``y`` (classes,) in the
    simplex. l_c is the mean over clients of their squared errors on class c, scaled so that equal clients give the class's mean. The
    objective as printed has no y_c in front of l_c, which leaves y = 0 whatever x is; this is the formulation that it cites (Nouiehed et
    al., 2019). The labels 1 and -1 of the network are the parity of the class, as in :func:`relu_network`.

    Parameters
    ----------
    data
        The pool; ``test_fraction`` of it is held out in ``problem.federation.test``.
    neurons
        N_1.
    scheme
        Partition over the clients; default ``hf.IID()``.
    lam
        Strong concavity in y.
    simplex
        y in the simplex, as in the cited formulation; ``False`` leaves y free, as printed, so that y_c = l_c / lam.
    weights
        Of the clients in the objective: ``"uniform"``, the papers' 1/m; ``"samples"``, rho_i = N_i / N; or numbers, one for each.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> data = hf.models.ClassificationData(rng.standard_normal((200, 4)), rng.integers(0, 2, 200))
    >>> problem = hf.models.fair_classification(data, clients=3)
    """
    features, classes = data.features.shape[1], data.onehot.shape[1]
    hidden, output = cp.Variable((neurons, features), name="Z"), cp.Variable(neurons, name="w")
    y = cp.Variable(classes, name="y")
    image, target = hf.Sample(features, name="image"), hf.Sample(name="target")
    share = hf.Sample(classes, nonneg=True, name="share")  # 1 / frequency of the sample's class, at that class
    federation = hf.Federation.split(
        {image: data.features, target: parity(data.labels), share: data.onehot / data.onehot.mean(axis=0)},
        clients=clients,
        scheme=scheme,
        test_fraction=test_fraction,
        seed=seed,
        weights=weights,
    )
    loss = squared_error(hidden, output, data.scaled(image), target)
    payoff = hf.E((share @ y) * loss) - 0.5 * lam * cp.sum_squares(y)
    return hf.Problem(
        hf.Minimize(clients=payoff),
        lower=hf.ArgMax(y, payoff, [y >= 0, cp.sum(y) == 1] if simplex else []),
        federation=federation,
    )

"""LFD: local gradient descent with periodic averaging, on full local data, for a federation-scope lower level.

[2S] names it beside Algorithm 3 for clients whose data differ, after Haddadpour and Mahdavi (2019, arXiv 1910.14425). What [2S]
quotes of that source (its Theorem 4.2) is the order m^(-1/3) T^(2/3) of the local steps between averages, and no step sizes:
those here are constant in a call, and the source's rate is not claimed for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierfl.errors import SettingError
from hierfl.near_names import suggests_names
from hierfl.solvers.lower.local_sgd import LocalDescent
from hierfl.solvers.parts.step_schedules import Schedule


@suggests_names
@dataclass(frozen=True)
class LFD(LocalDescent):
    """Local gradient descent with periodic averaging on full local data, for heterogeneous clients (after Haddadpour and Mahdavi 2019).

    No theorem bounds its error here. With a constant step s and H local steps between averages, clients whose minimisers differ
    leave an error of y of order s (H - 1), which more rounds do not remove.

    Parameters
    ----------
    rounds
        Lower rounds in one round of the upper level: number or schedule of the round.
    steps
        Local steps of a client in a lower round: number or schedule of the round.
    step_size
        Number or schedule of the local step t, counted over the lower rounds of one call.
    batch_size
        Rows of a minibatch; None uses all rows in every step.
    schedule
        ``"practical"`` uses the settings above; ``"certified"`` has certified constants choose them: the steps 1/(mu a_r) and the
        T = 2 a_r ln(a_r) local steps of Algorithm 3 of [2S], as :class:`LocalSGD`, in lower rounds of m^(-1/3) T^(2/3) each,
        the order that [2S] quotes of the source's Theorem 4.2.
    start
        Where y begins in every round of the upper level: ``"warm"`` where it ended at the last x, or ``"zero"``. The papers leave
        y_{0,r} to the server.

    Raises
    ------
    SettingError
        With ``schedule="certified"``, naming the constant that could not be proved; for ``schedule="theory"``.
    IncompatibleSolverError
        When bound to a lower level of another scope.
    """

    step_size: Schedule = 0.1
    batch_size: int | None = None
    schedules = ("practical", "certified")

    def __post_init__(self) -> None:
        if self.schedule == "theory":
            raise SettingError(
                "LFD has no schedule='theory': [2S] quotes the number of local steps of its source, but no step sizes, and no theorem "
                "is known for those of hierfl. Write schedule='certified' for steps from certified constants, or take "
                "LocalSGD(schedule='theory') (clients with data of one distribution) or Exact()."
            )
        super().__post_init__()

    def _shared_out(self, total: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        local = np.ceil(total ** (2 / 3) / clients ** (1 / 3)).astype(int)
        return np.ceil(total / local).astype(int), local

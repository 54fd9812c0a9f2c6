"""ZO-HFL as [HFL] prints it: Algorithms 1 and 2 with the settings of its experiments (§IV)."""

from __future__ import annotations

from typing import Any

from hierfl.errors import SettingError
from hierfl.solvers.lower import ProjectedSGD
from hierfl.solvers.papers.published import PaperMode
from hierfl.solvers.parts.requirements import require_number
from hierfl.solvers.parts.step_schedules import Decay

EXPERIMENTS = "§IV, throughout the experiments"
LINES = {
    "smoothing": f"{EXPERIMENTS}: eta = 0.1",
    "step_size": f"{EXPERIMENTS}: gamma_r = 0.01 / sqrt(r + 1)",
    "lower": "Algorithm 2: projected SGD",
    "lower.steps": "§IV (i): H_{i,r} = tau sqrt(r + 1), tau in {5, 20, 50}; rounded up as in Theorem 1 (ii)",
    "lower.step_size": f"{EXPERIMENTS}: gamma_{{i,t}} = 0.1 / (t + 1)",
    "lower.batch_size": "Algorithm 2, line 3: a random sample zeta",
    "lower.start": "Algorithm 2, line 1: the client chooses y_0",
    "participation": "§IV: a subset S_r of the clients; (i): its proportion beta in {0.9, 0.5, 0.1}",
    "absent": "Algorithm 1, line 7: (1/m) sum over i, whoever takes part; §IV: H_{i,r} = 0 has a similar effect",
    "batch_size": "Algorithm 1, line 7: a random sample xi_r",
    "common_random_numbers": "Algorithm 2, line 3: samples of its own in each of the two calls",
}


def hfl_mode(tau: float, start: str) -> PaperMode:
    """The mode with H_{i,r} = ceil(tau sqrt(r + 1)).

    Raises
    ------
    SettingError
        For a tau that is not positive, or another start.
    """
    require_number(tau, "tau of ZOHFL.published", 0, float("inf"))
    if start not in ("query", "warm"):
        raise SettingError(
            f"start={start!r} of ZOHFL.published: 'query' (from the queried point) or 'warm' (from the last y)."
        )
    settings: dict[str, Any] = {
        "smoothing": 0.1,
        "step_size": Decay(0.01, 0.5),
        "lower": ProjectedSGD(steps=Decay(tau, -0.5), step_size=Decay(0.1, 1.0), batch_size=1, start=start),
        "absent": "zero",
        "batch_size": 1,
        "common_random_numbers": False,
    }
    return PaperMode(
        name=f"Algorithms 1 and 2 with tau = {tau:g}",
        source="[HFL] (Qiu, Kim, Yousefian, 2025)",
        scope="client",
        settings=settings,
        lines=LINES,
        varied=("participation", "lower.steps", "lower.start"),
        run=(("rounds", "500", "500", "§IV (ii): R = 500"),),
        note="left open: the start x_0 (the server's own training, in hierfl's example), the start of Algorithm 2, and the sizes of minibatches",
    )

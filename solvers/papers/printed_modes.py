"""The algorithms as the papers print them, with the settings of their experiments: FedRZO ([NN], [2S]), ZO-HFL ([HFL], §IV)."""

from __future__ import annotations

from typing import Any

from hierfl.errors import SettingError
from hierfl.near_names import near_names
from hierfl.solvers.lower import LocalSGD, ProjectedSGD, ProjectionMethod
from hierfl.solvers.papers.published import PaperMode
from hierfl.solvers.parts.requirements import require_number
from hierfl.solvers.parts.step_schedules import Decay, LogGrowth

KINDS = ("nn", "bl", "mm", "2s")
FOLLOWERS = {10: (20, 1e-4), 20: (35, 1e-6), 100: (55, 1e-7), 1000: (80, 1e-8)}  # tau and alpha of [2S] §6.4
RAW = ("queries", "'raw'", "'projected'", "f is queried at x + v, be it outside X")
ONE_SAMPLE = "one sample xi_{i,k} in a local step"


def fedrzo_mode(kind: str, followers: int | None) -> PaperMode:
    """The mode of a class of problem; ``followers`` chooses tau and alpha of ``"2s"``.

    Raises ``SettingError`` for a class that there is not, and for another number of followers than the paper's.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise SettingError(f"FedRZO.published({kind!r}): {near_names(kind, KINDS)}")
    if followers is not None and (kind != "2s" or followers not in tuple(FOLLOWERS)):
        raise SettingError(
            f"followers={followers!r} of FedRZO.published({kind!r}): the paper has tau and alpha for 10, 20, 100 or 1000 followers "
            f"of its two-stage game, mode '2s'. For other problems give lower=ProjectionMethod(steps=LogGrowth(tau), ...)."
        )
    if kind == "nn":
        return _single_level()
    return _two_stage(followers or 10) if kind == "2s" else _bilevel(kind)


def _single_level() -> PaperMode:
    return PaperMode(
        name="Algorithm 1 (nn)",
        source="[NN] and [2S] (Qiu, Shanbhag, Yousefian, 2023, 2024)",
        scope=None,
        settings={"smoothing": 0.1, "step_size": 1e-5, "local_steps": 20, "batch_size": 1},
        lines={
            "smoothing": "[2S] §6.1: eta in {0.1, 0.01, 0.001}",
            "step_size": "[2S] §6.1: gamma = 1e-5",
            "local_steps": "[2S] §6.1: H in {1, 5, 10, 20}",
            "batch_size": f"Algorithm 1, line 5: {ONE_SAMPLE}",
            "estimator": "Algorithm 1, line 6: the forward difference",
        },
        varied=("smoothing", "local_steps"),
        run=(RAW,),
        note="left open: the scale of the loss, which decides whether this step moves anything; the weights at the start",
    )


def _bilevel(kind: str) -> PaperMode:
    """Of bilevel problems, and of minimax problems, whose lower level has -f_i (§4)."""
    section = "§6.2" if kind == "bl" else "§6.3"
    settings: dict[str, Any] = {
        "batch_size": 1,
        "common_random_numbers": False,
        "lower": LocalSGD(schedule="theory", batch_size=1, start="zero"),
    }
    lines = {
        "batch_size": f"Algorithm 2, line 7: {ONE_SAMPLE}",
        "common_random_numbers": "Algorithm 2, line 4, and Algorithm 3, line 5: two calls, each with samples of its own",
        "lower": "Algorithm 2, line 4: calls FedAvg; Case 1: Algorithm 3, Local SGD",
        "lower.schedule": "Algorithm 3, line 1: a_r, 1 / (mu_h a_r), 2 a_r ln a_r steps, m rounds",
        "lower.batch_size": "Algorithm 3, line 5: one sample",
        "lower.start": "Algorithm 3, line 1: the server chooses y_{0,r}",
        "estimator": "Algorithm 2, line 8: the forward difference",
    }
    return PaperMode(
        name=f"Algorithms 2 and 3 ({kind})",
        source="[2S] (Qiu, Shanbhag, Yousefian, 2024)",
        scope="federation",
        settings=settings,
        lines=lines,
        varied=("lower.start",),
        run=(RAW,),
        opposed=kind == "mm",
        note=f"left open: eta, gamma and H of the experiments ({section} prints none; hierfl's defaults stand), and y_{{0,r}}",
    )


def _two_stage(followers: int) -> PaperMode:
    tau, alpha = FOLLOWERS[followers]
    return PaperMode(
        name=f"Algorithms 4 and 5 (2s) with {followers} followers",
        source="[2S] (Qiu, Shanbhag, Yousefian, 2024)",
        scope="sample",
        settings={
            "smoothing": 0.1,
            "step_size": 1e-3,
            "local_steps": 20,
            "batch_size": 1,
            "lower": ProjectionMethod(steps=LogGrowth(tau), step_size=alpha, start="zero"),
        },
        lines={
            "smoothing": "§6.4: eta in {1, 0.1, 0.01}",
            "step_size": "§6.4: gamma = 1e-3",
            "local_steps": "§6.4: H in {1, 10, 20}",
            "batch_size": f"Algorithm 4, line 5: {ONE_SAMPLE}",
            "lower": "Algorithm 5: projections",
            "lower.steps": f"Algorithm 5, line 2: ceil(tau ln(k + 1)); §6.4: tau = {tau} for {followers} followers",
            "lower.step_size": f"§6.4: alpha = {alpha:g} for {followers} followers",
            "lower.start": "Algorithm 5, line 1: an arbitrary y_0",
            "estimator": "Algorithm 4, line 6: the forward difference",
        },
        varied=("smoothing", "local_steps", "lower.start"),
        run=(("rounds", "100", "500", "§6.4: R = 100"), RAW),
        note="left open: y_0, and whether k counts from 0 (Algorithm 4) or 1 (Algorithm 5): from 1 here; with these tau and alpha y is still near it (Theorem 2 (iii) asks for far more steps)",
    )


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

    Raises ``SettingError`` for a tau that is not positive, or another start.
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

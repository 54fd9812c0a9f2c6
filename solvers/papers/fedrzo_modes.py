"""FedRZO as [NN] and [2S] print it, for every class of problem: the algorithms, with the settings of their experiments."""

from __future__ import annotations

from typing import Any

from hierfl.errors import SettingError
from hierfl.near_names import near_names
from hierfl.solvers.lower import LocalSGD, ProjectionMethod
from hierfl.solvers.papers.published import PaperMode
from hierfl.solvers.parts.step_schedules import LogGrowth

KINDS = ("nn", "bl", "mm", "2s")
FOLLOWERS = {10: (20, 1e-4), 20: (35, 1e-6), 100: (55, 1e-7), 1000: (80, 1e-8)}  # tau and alpha of [2S] §6.4
RAW = ("queries", "'raw'", "'projected'", "f is queried at x + v, be it outside X")
ONE_SAMPLE = "one sample xi_{i,k} in a local step"


def fedrzo_mode(kind: str, followers: int | None) -> PaperMode:
    """The mode of a class of problem; ``followers`` chooses tau and alpha of ``"2s"``.

    Raises
    ------
    SettingError
        For a class that there is not, and for another number of followers than the paper's.
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

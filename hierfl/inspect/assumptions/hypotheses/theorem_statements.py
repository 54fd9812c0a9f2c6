"""The theorems of the papers: what they bound, which hypotheses they need, and their known gaps."""

from __future__ import annotations

STATEMENT = "a bound on E|grad f^eta(x_k*)|^2 at a random iterate k*, eta = {eta:g}, accuracy {epsilon:g}"
PROJECTED = "queries='projected': f is queried on X, so that constants on X suffice"
NEEDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "nn": (
        "[NN] Proposition 1 ([2S] Proposition 1)",
        (
            "f Lipschitz in x",
            "unbiased samples",
            "bounded variance of f",
            "X nonempty, closed and convex",
            "set dissimilarity",
        ),
    ),
    "bl": (
        "[2S] Theorem 1",
        (
            *("f Lipschitz in x", "f Lipschitz in y", "implicit function Lipschitz", "strong convexity", "smoothness"),
            *("lower gradient Lipschitz in x", "y(x) Lipschitz", "X nonempty, closed and convex", "set dissimilarity"),
            *("Y(x) nonempty", "Y(x) closed and convex", "unbiased samples"),
        ),
    ),
    "2s": (
        "[2S] Theorem 2",
        (
            *(
                "f Lipschitz in y",
                "implicit function Lipschitz",
                "strong monotonicity",
                "smoothness",
                "unbiased samples",
            ),
            *("X nonempty, closed and convex", "set dissimilarity"),
            *("Y(x) nonempty", "Y(x) closed and convex", "Y(x) bounded"),
        ),
    ),
    "hfl": (
        "[HFL] Theorem 1",
        (
            *("f Lipschitz in x", "f Lipschitz in y", "implicit function Lipschitz", "strong convexity", "smoothness"),
            *("lower gradient Lipschitz in x", "unbiased samples", "bounded variance of the lower gradient"),
            *("server term smooth", "bounded variance of the server gradient", "client term without samples"),
            *("Y(x) nonempty", "Y(x) closed and convex", "Y(x) bounded"),
        ),
    ),
}
GAPS = {
    "nn": (
        "the proof shows f^eta to be (L_0 n + 1) / eta-smooth and then writes L_0 n / (2 eta); predicted is with the former.",
    ),
    "bl": (
        "[2S] Lemma 9 treats a direction shared by all clients and by H local steps as if independent: no linear speed-up in m is "
        "proved. Prescribed is one local step a round, without division by m.",
        "Theta_5 prints (96 B_2^2 + 1) L^2 n^2 where Lemma 11 (ii) gives 24 (4 B_2^2 + 1) L^2 n^2: 24 times as much at B_2 = 0. With one local "
        "step a round, as is prescribed, Theta_5 does not enter.",
        "Algorithm 3 makes 2 a_r ln a_r local steps, linearly many in r, where (ii) asks for m^-1 (r + 1)^(2/3) only; its rate is proved for "
        "clients with data of one distribution. No error of the lower level is computed in a run: with lower=Exact() there is none.",
        "for clients whose data differ [2S] names LFD, quoting the order of its local steps and no step sizes: a run by theory does not take it.",
        "the proof's factor (L_{grad h,x} / mu_h)^2 in Theta_3 belongs to the drift only; the lower level's error is weighed without it.",
    ),
    "2s": ("the proof needs gamma <= 1 / (sqrt(24) H) (Lemma 13 (ii)), which the statement omits; it is imposed.",),
    "hfl": (
        "Theta_1 telescopes over a non-constant 1 / gamma_r: it is 16 L^f (sup_r E f^eta(x_r) - f*), with the range of f on X here.",
        "Theta_3 must be multiplied by the mean over clients of C_i / tau_i, C_i the numerator of Proposition 1; tau is chosen so that it is at most 1.",
        "Theorem 2 (almost sure convergence) asks for sum gamma_r^2 < inf, p in (1/2, 1] of c / (r + 1)^p, which the steps of Theorem 1 and of "
        "the paper's experiments, p = 1/2, do not meet: check(solver=ZOHFL(...)) tells which of its conditions hold for a schedule.",
    ),
}

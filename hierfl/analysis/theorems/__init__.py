"""What the papers' theorems prescribe and predict, as functions of the constants; as printed, and corrected.

[NN]  Qiu, Shanbhag, Yousefian (2023), Proposition 1.
[2S]  Qiu, Shanbhag, Yousefian (2024), Proposition 1, Theorems 1 and 2.
[HFL] Qiu, Kim, Yousefian (2025), Proposition 1, Theorem 1.

All bound E|grad f^eta|^2 at a random iterate. ``gap`` stands for f^eta(x_0) - inf f^eta, an upper bound of it.
"""

from hierfl.analysis.theorems.prescription import (
    Constants,
    Prescription,
)
from hierfl.analysis.theorems.proposition_nn import (
    bound_nn,
    prescribe_nn,
    step_limit_nn,
)
from hierfl.analysis.theorems.theorem_2s import (
    bound_2s,
    lower_steps_2s,
    prescribe_2s,
    step_limit_2s,
    step_limit_2s_corrected,
    thetas_2s,
)
from hierfl.analysis.theorems.theorem_bl import (
    bound_bl,
    bound_bl_corrected,
    prescribe_bl,
    prescribe_bl_corrected,
    step_limit_bl,
    thetas_bl,
)
from hierfl.analysis.theorems.theorem_hfl import (
    lower_settings_hfl,
    prescribe_hfl,
    smoothness_hfl,
    thetas_hfl,
    thetas_hfl_corrected,
)

__all__ = [
    "Constants",
    "Prescription",
    "bound_2s",
    "bound_bl",
    "bound_bl_corrected",
    "bound_nn",
    "lower_settings_hfl",
    "lower_steps_2s",
    "prescribe_2s",
    "prescribe_bl",
    "prescribe_bl_corrected",
    "prescribe_hfl",
    "prescribe_nn",
    "smoothness_hfl",
    "step_limit_2s",
    "step_limit_2s_corrected",
    "step_limit_bl",
    "step_limit_nn",
    "thetas_2s",
    "thetas_bl",
    "thetas_hfl",
    "thetas_hfl_corrected",
]

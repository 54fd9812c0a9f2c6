"""Ready declarations, one problem per file; imported as ``hierfl.models``."""

from hierfl.models.coupled_minimax import coupled_minimax
from hierfl.models.heterogeneous_classification import ClassificationData, heterogeneous_classification
from hierfl.models.nonsmooth_toy import nonsmooth_toy
from hierfl.models.stackelberg_cournot import stackelberg_cournot, stackelberg_cournot_game

__all__ = [
    "ClassificationData",
    "coupled_minimax",
    "heterogeneous_classification",
    "nonsmooth_toy",
    "stackelberg_cournot",
    "stackelberg_cournot_game",
]

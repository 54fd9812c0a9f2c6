"""Ready declarations, one problem per file; imported as ``hierfl.models``."""

from hierfl.models.coupled_minimax import coupled_minimax
from hierfl.models.fair_classification import fair_classification
from hierfl.models.heterogeneous_classification import ClassificationData, heterogeneous_classification
from hierfl.models.hyperparameter_learning import hyperparameter_learning
from hierfl.models.nonsmooth_toy import nonsmooth_toy
from hierfl.models.relu_network import relu_network
from hierfl.models.stackelberg_cournot import stackelberg_cournot, stackelberg_cournot_game

__all__ = [
    "ClassificationData",
    "coupled_minimax",
    "fair_classification",
    "heterogeneous_classification",
    "hyperparameter_learning",
    "nonsmooth_toy",
    "relu_network",
    "stackelberg_cournot",
    "stackelberg_cournot_game",
]

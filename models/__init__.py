"""Ready declarations, one problem per file; imported as ``hierfl.models``."""

from typing import TYPE_CHECKING

from hierfl.models.coupled_minimax import coupled_minimax
from hierfl.models.fair_classification import fair_classification
from hierfl.models.heterogeneous_classification import ClassificationData, heterogeneous_classification
from hierfl.models.hyperparameter_learning import hyperparameter_learning
from hierfl.models.nonsmooth_toy import nonsmooth_toy
from hierfl.models.regression import CoxRegression, LinearRegression, LogisticRegression, PoissonRegression
from hierfl.models.regression import Regression as Regression
from hierfl.models.relu_network import relu_network
from hierfl.models.road_network import RoadNetwork
from hierfl.models.stackelberg_cournot import stackelberg_cournot, stackelberg_cournot_game
from hierfl.near_names import doors

__all__ = [
    "ClassificationData",
    "CoxRegression",
    "LinearRegression",
    "LogisticRegression",
    "PoissonRegression",
    "RoadNetwork",
    "coupled_minimax",
    "fair_classification",
    "heterogeneous_classification",
    "hyperparameter_learning",
    "nonsmooth_toy",
    "relu_network",
    "stackelberg_cournot",
    "stackelberg_cournot_game",
]

if not TYPE_CHECKING:  # type-checkers know the names above
    __getattr__, __dir__ = doors("hierfl.models", __all__)

"""Where the clients run."""

from typing import TYPE_CHECKING

from hierfl.near_names import doors
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.on_dask.dask_runtime import Dask
from hierfl.runtime.on_flower.flower_runtime import Flower
from hierfl.runtime.privacy.gaussian_noise import GaussianNoise
from hierfl.runtime.privacy.pairwise_masks import PairwiseMasks
from hierfl.runtime.site_runtime import Delayed

__all__ = ["Dask", "Delayed", "Flower", "GaussianNoise", "InProcess", "PairwiseMasks"]

if not TYPE_CHECKING:  # type-checkers know the names above
    __getattr__, __dir__ = doors("hierfl.runtime", __all__)

"""hierfl: a modeling language for hierarchical federated optimization.

Declare, in CVXPY's own expressions, what the server and the clients minimise, which lower-level problem answers each
upper decision x, and who holds which data; evaluate and inspect the implicit function; run federated algorithms on it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hierfl import errors
from hierfl.errors import *  # noqa: F403
from hierfl.language.aggregates import Cox, CVaR, Worst
from hierfl.language.expectation import E, total
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.partition_schemes import IID, ByGroup, Dirichlet, Quantity, Shards
from hierfl.language.federation.sample_values import Elsewhere
from hierfl.language.federation.schema import Moments, Schema
from hierfl.language.function import BlackBox, Function
from hierfl.language.levels import ArgMax, ArgMin, Dual, Equilibrium, Maximize, Minimize, ShadowPrice
from hierfl.language.player import Nash, Player
from hierfl.language.sample import ClientParameter, Sample
from hierfl.near_names import no_such_name
from hierfl.problem import Problem
from hierfl.result import Result
from hierfl.run_settings import Budget, Checkpoint
from hierfl.runs import Runs
from hierfl.sweeping import Sweep, sweep
from hierfl.version import VERSION

__version__ = VERSION

__all__ = [
    "IID", "ArgMax", "ArgMin", "BlackBox", "Budget", "ByGroup", "CVaR", "Checkpoint", "Client", "ClientParameter",
    "Cox", "Dirichlet", "Dual", "E", "Elsewhere", "Equilibrium", "Federation", "Function", "Maximize", "Minimize",
    "Moments", "Nash", "Player", "Problem", "Quantity", "Result", "Runs", "Sample", "Schema", "ShadowPrice",
    "Shards", "Study", "Sweep", "Worst", "complexity", "errors", "sweep", "total",
]
__all__ += errors.__all__

if TYPE_CHECKING:
    from hierfl.complexities import complexity as complexity
    from hierfl.study import Study as Study

ROOMS = ("models", "runtime", "solvers", "study", "testing")  # of which a program need import none
LATER = {"Study": "hierfl.study", "complexity": "hierfl.complexities"}  # what import more than ``import hierfl`` need wait for

if not TYPE_CHECKING:  # type-checkers know the names above

    def __getattr__(name: str) -> Any:
        """``hf.solvers`` and the other rooms without an import of their own; the nearest name for a misspelt one."""
        if name in ROOMS:
            return import_module(f"hierfl.{name}")
        if name in LATER:
            return getattr(import_module(LATER[name]), name)
        rooms = () if name.startswith("_") else ("solvers", "models")
        further = [f"{room}.{one}" for room in rooms for one in import_module(f"hierfl.{room}").__all__]
        of_cvxpy = f"it is CVXPY's own, cp.{name}." if rooms and hasattr(import_module("cvxpy"), name) else ""
        raise no_such_name("hierfl", name, [*__all__, *ROOMS, *further], of_cvxpy)

    def __dir__() -> list[str]:
        return sorted([*__all__, *ROOMS, "__version__"])

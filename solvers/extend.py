"""What solvers are written of, in one place, for those who write their own: see ``docs/extend/solver.md``, which tells of every name here.

Names here are kept; the modules that they come from may change.
"""

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.jaxtools.keyed_random import fold_in, row_numbers, split
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.fedavg import BoundFedAvg, require_first_order
from hierfl.solvers.parts.bound import Bound, SharedState
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.common_settings import require_common
from hierfl.solvers.parts.local_steps import LocalSteps
from hierfl.solvers.parts.nested import (
    BoundNested,
    NestedPoint,
    NestedSettings,
    certified_smoothness,
    require_nested,
    tabulate_lower_step,
)
from hierfl.solvers.parts.participation import Participation, cohorts_of, present_weights
from hierfl.solvers.parts.requirements import (
    require_clients_alone,
    require_count,
    require_gradients,
    require_number,
    require_public_set,
    require_single_level,
)
from hierfl.solvers.parts.round_monitor import RoundMonitor, first_fault, move_rate
from hierfl.solvers.parts.step_schedules import (
    Schedule,
    StepCounts,
    constant,
    in_phases,
    row,
    steps_of,
    tabulate,
    tabulate_steps,
)

__all__ = [
    "Bound",
    "BoundFedAvg",
    "BoundNested",
    "ClientOracle",
    "Clients",
    "CompiledProblem",
    "Known",
    "LocalSteps",
    "Message",
    "NestedPoint",
    "NestedSettings",
    "Participation",
    "Party",
    "Received",
    "RoundMonitor",
    "Schedule",
    "SharedState",
    "StepCounts",
    "certified_smoothness",
    "cohorts_of",
    "constant",
    "first_fault",
    "fold_in",
    "in_phases",
    "move_rate",
    "present_weights",
    "require_clients_alone",
    "require_common",
    "require_count",
    "require_first_order",
    "require_gradients",
    "require_nested",
    "require_number",
    "require_public_set",
    "require_single_level",
    "row",
    "row_numbers",
    "split",
    "steps_of",
    "suggests_names",
    "tabulate",
    "tabulate_lower_step",
    "tabulate_steps",
]

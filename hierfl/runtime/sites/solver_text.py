"""A solver as the Python that makes it, which sites of others read: calls of hierfl's own names with numbers, and nothing is run."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from hierfl.errors import SettingError


def solver_text(solver: Any) -> str:
    """The call that makes this solver, such as ``FedAvg(step_size=0.05)``; settings that have their default are left out.

    Raises ``SettingError`` for a setting that is neither a number, a word, a list of these, nor one of hierfl's own
    schedules and solvers.
    """
    given = []
    for setting in fields(solver):
        if not setting.init:
            continue
        value = getattr(solver, setting.name)
        default = setting.default if setting.default_factory is MISSING else setting.default_factory()
        if not (value is default or (np.isscalar(value) and np.isscalar(default) and value == default)):
            given.append(f"{setting.name}={_written(value, f'{type(solver).__name__}({setting.name}=...)')}")
    return f"{type(solver).__name__}({', '.join(given)})"


def _written(value: Any, what: str) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return solver_text(value)
    if value is None or isinstance(value, bool | np.bool_ | str):
        return repr(value.item() if isinstance(value, np.bool_) else value)
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real) and np.isfinite(float(value)):
        return repr(float(value))
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(item, what) for item in value)}]"
    raise SettingError(
        f"{what} is {type(value).__name__}: sites of others are sent a solver as text, so write a number, a list of numbers, or a schedule of "
        f"hierfl's own such as Decay(0.1, 0.5). A run in process, and hf.runtime.Dask(sites=...) with all data here, take any."
    )

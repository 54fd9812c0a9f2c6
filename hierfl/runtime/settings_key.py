"""Settings as a key: equal settings have equal keys, lists and arrays among them included."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def settings_key(value: Any) -> Hashable:
    """Make a key of a solver, or of one of its settings, by value: what is compiled for it is kept, and found again."""
    if isinstance(value, np.generic):
        return (type(value), value.item())
    if isinstance(value, np.ndarray):
        return (np.ndarray, value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, list | tuple):
        return (type(value), *map(settings_key, value))
    if isinstance(value, Mapping):
        return (type(value), *((name, settings_key(part)) for name, part in value.items()))
    if is_dataclass(value) and not isinstance(value, type) and type(value).__eq__ is not object.__eq__:
        return (type(value), *(settings_key(getattr(value, field.name)) for field in fields(value)))
    itself: Hashable = value
    return itself

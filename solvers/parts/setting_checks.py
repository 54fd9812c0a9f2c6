"""Checks of a solver's settings: what is wrong, and what is allowed."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from hierfl.errors import SettingError


def require_count(value: Any, name: str, *, or_none: bool = False) -> None:
    """A whole number of at least 1 (or None).

    Raises
    ------
    SettingError
        Naming the setting.
    """
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, (Integral, np.integer)) or value < 1:
        raise SettingError(
            f"{name}={value!r}: a whole number of at least 1{', or None for all rows' if or_none else ''}."
        )


def require_number(value: Any, name: str, low: float, high: float) -> None:
    """A finite number in (low, high].

    Raises
    ------
    SettingError
        Naming the setting.
    """
    real = isinstance(value, (Real, np.number)) and not isinstance(value, bool)
    if not real or not np.isfinite(float(value)) or not low < float(value) <= high:
        limit = f"a number in ({low:g}, {high:g}]" if np.isfinite(high) else f"a finite number above {low:g}"
        raise SettingError(f"{name}={value!r}: {limit}.")


def require_flag(value: Any, name: str) -> None:
    """True or False.

    Raises
    ------
    SettingError
        Naming the setting.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise SettingError(f"{name}={value!r}: True or False.")


def require_lower(value: Any) -> None:
    """A lower-level solver.

    Raises
    ------
    SettingError
        Naming some.
    """
    if isinstance(value, type) or not hasattr(value, "bind"):
        raise SettingError(f"lower={value!r}: a lower-level solver such as Exact() or ProjectedSGD(steps=20).")


def require_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """One of some words.

    Raises
    ------
    SettingError
        Naming the setting and the words.
    """
    if value not in choices:
        raise SettingError(f"{name}={value!r}: write one of {', '.join(map(repr, choices))}.")

"""Modules that are loaded when something in them is first used, so that ``import hierfl`` loads neither JAX nor SymPy."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module until an attribute is asked for; under ``TYPE_CHECKING`` write the plain import instead."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value

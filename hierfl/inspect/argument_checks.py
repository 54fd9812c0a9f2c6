"""Numbers that inspections take, checked where they are given: the message names the argument."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import SettingError


def require_positive(name: str, value: Any) -> float:
    """Require a finite number above 0; raises ``SettingError``, naming the argument."""
    if not is_number(value) or not 0 < value < np.inf:
        raise SettingError(f"{name}={value!r}: a finite number above 0.")
    return float(value)


def require_tolerance(name: str, value: Any) -> float:
    """Require a finite number of at least 0; errors as for :func:`require_positive`."""
    if not is_number(value) or not 0 <= value < np.inf:
        raise SettingError(f"{name}={value!r}: a finite number of at least 0.")
    return float(value)


def require_whole(name: str, value: Any, least: int) -> int:
    """Require a whole number of at least ``least``; errors as for :func:`require_positive`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise SettingError(f"{name}={value!r}: a whole number of at least {least}.")
    return int(value)


def writable(path: Any, overwrite: bool = True) -> Path:
    """Require the name of a file that can be written, of none that is there unless it may be overwritten; returns its path.

    Raises ``SettingError``, saying why it cannot.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise SettingError(f"path={path!r}: the name of a file, such as 'run.html'.")
    target = Path(path)
    if target.is_dir():
        raise SettingError(f"path={str(path)!r} is a folder: give the name of a file in it, such as {str(target / 'run.html')!r}.")
    if not target.parent.is_dir():
        raise SettingError(f"path={str(path)!r}: there is no folder {str(target.parent)!r}; make it first.")
    if target.exists() and not overwrite:
        raise SettingError(f"path={str(path)!r} is there already: write overwrite=True (--overwrite in a shell), or give another name.")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise SettingError(f"path={str(path)!r} may not be written: its permissions do not allow it.")
    return target


def writable_picture(path: Any) -> Path:
    """Require the name of a file that can be written and whose ending says a format that matplotlib can draw in.

    Raises ``SettingError``, saying why it cannot, or which endings are known.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    target, known = writable(path), FigureCanvasBase.get_supported_filetypes()
    if target.suffix.lstrip(".").lower() not in known:
        raise SettingError(f"path={str(path)!r}: end the name in one of .{', .'.join(sorted(known))}.")
    return target


def is_number(value: Any) -> bool:
    """Whether a value is a real number, and no truth value."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)

"""Runs that an error stops again and again until they come to their end, and whether two results are the same to the last bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

import hierfl as hf


class StoppedError(Exception):
    """What stops a run."""


def total(x: Any, y: Any) -> float:
    """A metric."""
    return float(np.sum(np.asarray(x)))


def outcome(problem: hf.Problem, solver: Any, **settings: Any) -> Any:
    """The result of a run, or of several, diverged or not."""
    try:
        return problem.solve(solver, metrics={"total": total}, progress=False, **settings)
    except hf.DivergedError as error:
        return error.runs or error.result


def by_and_by(problem: hf.Problem, solver: Any, folder: Path, evaluations: int, **settings: Any) -> tuple[Any, int]:
    """The same run, stopped after so many evaluations of its metric each time it is resumed; and how often it was stopped."""
    for stopped in range(50):
        left = [evaluations]

        def metric(x: Any, y: Any, left: list[int] = left) -> float:
            left[0] -= 1
            if left[0] < 0:
                raise StoppedError
            return total(x, y)

        kept = hf.Checkpoint(folder, every_rounds=1)
        try:
            return problem.solve(
                solver, metrics={"total": metric}, progress=False, checkpoint=kept, resume=True, **settings
            ), stopped
        except hf.DivergedError as error:
            return error.runs or error.result, stopped
        except hf.SettingError as error:
            assert isinstance(error.__cause__, StoppedError)
    raise AssertionError("it never comes to an end")


def require_same(found: hf.Result, wanted: hf.Result, of_one_folder: bool = False) -> None:
    """All that a result holds but seconds, and the folder where one of them has none."""
    assert found.ended == wanted.ended
    for group in ("history", "metrics", "trajectory"):
        ours, theirs = getattr(found, group), getattr(wanted, group)
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=f"{group} {name}")
    for name in ("x", "iterate", "x0", "distances", "value", "own_value"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    assert len(found.history["seconds"]) == len(found.history["objective"])
    assert found.communication == wanted.communication
    assert repr(found.certificate) == repr(wanted.certificate)  # NaN, where there is no lower level, is not itself
    assert {k: v for k, v in found.settings.items() if of_one_folder or k != "checkpoint"} == wanted.settings


def stored_arrays(folder: Path, name: str) -> list[np.ndarray]:
    """An array of every checkpoint in a folder, the oldest first."""
    paths = sorted(folder.glob("*.checkpoint"))
    return [np.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]))[name] for path in paths]

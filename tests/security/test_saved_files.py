"""Results, checkpoints and kept memories that somebody has changed: one kind of error, no array missed, no memory taken for what they claim."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.runtime.sites.memory_folder import memory_bytes, memory_of
from hierfl.solvers import FedAvg
from tests.memory import memory_below
from tests.security.noise import MANY, archive, array, header, mutated
from tests.solvers.test_baselines import least_squares

Change = Callable[[dict[str, np.ndarray]], Any]


def rewritten(content: bytes, change: Change) -> bytes:
    """An archive of arrays with some of them changed, and otherwise as it was."""
    with np.load(io.BytesIO(content)) as stored:
        arrays = {name: stored[name] for name in stored.files}
    change(arrays)
    made = io.BytesIO()
    np.savez(made, **arrays)  # type: ignore[arg-type]
    return made.getvalue()


def noted(change: Callable[[dict[str, Any]], Any]) -> Change:
    """The note with a change."""

    def act(arrays: dict[str, np.ndarray]) -> None:
        note = json.loads(str(arrays["note"]))
        change(note)
        arrays["note"] = np.array(json.dumps(note))

    return act


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A saved result with several variables and metrics."""
    v, w = cp.Variable(2, name="v"), cp.Variable(2, name="w")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(v - 1) + cp.sum_squares(w)))
    result = problem.solve(FedAvg(), rounds=3, progress=False, metrics={"m": lambda x, y: 1.0}, evaluate_every=1)
    path = tmp_path_factory.mktemp("saved") / "run.npz"
    result.save(path)
    return path.read_bytes()


def loaded(content: bytes, folder: Path, **settings: Any) -> hf.Result:
    path = folder / "changed.npz"
    path.write_bytes(content)
    return hf.Result.load(path, **settings)


def test_every_array_of_a_result_is_required(saved: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(saved)) as members:
        names = [name.removesuffix(".npy") for name in members.namelist()]
    assert len(names) > 15 and loaded(saved, tmp_path).ended == "completed"
    for name in names:
        with pytest.raises(hf.DataError, match=f"not a saved hierfl result: .*{'note' if name == 'note' else name}"):
            loaded(rewritten(saved, lambda arrays, name=name: arrays.pop(name)), tmp_path)
    with pytest.raises(hf.DataError, match="history/more"):
        loaded(rewritten(saved, lambda arrays: arrays.update({"history/more": np.zeros(3)})), tmp_path)


MALFORMED: dict[str, Change] = {
    "no list of arrays": noted(lambda note: note.pop("arrays")),
    "a list of arrays that is a number": noted(lambda note: note.update(arrays=3)),
    "no certificate": noted(lambda note: note.pop("certificate")),
    "another certificate": noted(lambda note: note.update(certificate={"asserted": []})),
    "a certificate that is a list": noted(lambda note: note.update(certificate=[1])),
    "a value that is a text": noted(lambda note: note.update(value="low")),
    "no value": noted(lambda note: note.update(value=None)),
    "communication that is a text": noted(lambda note: note.update(communication="much")),
    "settings that are a number": noted(lambda note: note.update(settings=7)),
    "rest of another kind": noted(lambda note: note.update(rest={"sleep": 8})),
    "a structure of another kind": noted(lambda note: note["structure"].update(x={"set": []})),
    "a structure that names no array": noted(lambda note: note["structure"].update(x={"dict": {"q": "array"}})),
    "no structure": noted(lambda note: note.update(structure=None)),
    "a point of no theorem": noted(lambda note: note.update(theorem_point={"value": 1})),
    "a note that is a list": lambda arrays: arrays.update(note=np.array("[1]")),
    "a note that is no JSON": lambda arrays: arrays.update(note=np.array("{")),
    "a deep note": lambda arrays: arrays.update(note=np.array("[" * 100_000)),
    "a note of numbers": lambda arrays: arrays.update(note=np.zeros(3)),
    "an earlier format": noted(lambda note: note.update(format=4)),
    "distances that are texts": lambda arrays: arrays.update(distances=np.array(["far"])),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_result_is_one_kind_of_error(kind: str, saved: bytes, tmp_path: Path) -> None:
    with pytest.raises(hf.DataError, match=r"changed.npz is not a saved hierfl result: "):
        loaded(rewritten(saved, MALFORMED[kind]), tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"text" * 100,
        b"PK\5\6" + bytes(18),
        array(1.0),
        archive({"note.npy": b"no array"}),
        archive({"note": b"{}"}),
    ],
)
def test_another_file_is_one_kind_of_error(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(hf.DataError, match="not a saved hierfl result"):
        loaded(content, tmp_path)
    with pytest.raises(hf.DataError, match="cannot be read: Is a directory"):
        hf.Result.load(tmp_path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    made = io.BytesIO()
    np.savez(made, note=np.array([print], object))
    with pytest.raises(hf.DataError, match="not a saved hierfl result: an array of type object"):
        loaded(made.getvalue(), tmp_path)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**63))
def test_mutated_results_are_read_or_one_kind_of_error(seed: int, saved: bytes, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for _ in range(MANY):
        try:
            found = loaded(mutated(saved, draw), tmp_path)
        except hf.DataError as error:
            assert "\n" not in str(error)
        else:
            assert found.ended == "completed" and len(found.history["objective"]) == 3


def bomb(saved: bytes, size: int) -> bytes:
    """The result with a column of the history that is packed, and has so many bytes."""
    made = io.BytesIO()
    with (
        np.load(io.BytesIO(saved)) as stored,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as members,
    ):
        for name in stored.files:
            if name != "history/objective":
                members.writestr(f"{name}.npy", array(stored[name]))
        with members.open("history/objective.npy", "w", force_zip64=True) as member:
            member.write(header((size // 8,)))
            for _ in range(size // 1_000_000):
                member.write(bytes(1_000_000))
    return made.getvalue()


def test_a_result_that_unpacks_to_gigabytes_is_refused_and_says_how_it_is_read(saved: bytes, tmp_path: Path) -> None:
    told = f"it unpacks to .* bytes, more than largest={2**30:,}.*write Result.load.path, largest="
    large = bomb(saved, 1_200_000_000)
    assert len(large) < 10_000_000
    with memory_below(64 << 20), pytest.raises(hf.DataError, match=told):
        loaded(large, tmp_path)


def test_a_result_that_lies_about_what_it_unpacks_to_takes_no_memory(saved: bytes, tmp_path: Path) -> None:
    lying, name = bytearray(bomb(saved, 200_000_000)), b"history/objective.npy"
    entry = lying.rindex(name) - 46
    lying[entry + 24 : entry + 28] = (1000).to_bytes(4, "little")
    with memory_below(32 << 20), pytest.raises(hf.DataError, match="not a saved hierfl result"):
        loaded(bytes(lying), tmp_path)


def test_a_packed_result_within_what_is_allowed_is_read(saved: bytes, tmp_path: Path) -> None:
    made = io.BytesIO()
    with np.load(io.BytesIO(saved)) as stored:
        np.savez_compressed(made, **{name: stored[name] for name in stored.files})  # type: ignore[arg-type]
    assert loaded(made.getvalue(), tmp_path).value == loaded(saved, tmp_path).value
    with pytest.raises(hf.DataError, match="more than largest=1,000"):
        loaded(saved, tmp_path, largest=1000)


# --- checkpoints -------------------------------------------------------------------------------------------------------


def solve(folder: Path, **given: Any) -> hf.Result:
    kept = hf.Checkpoint(folder, every_rounds=2)
    return least_squares().solve(FedAvg(0.05), rounds=4, progress=False, checkpoint=kept, **given)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("checkpoint")
    solve(folder)
    return max(folder.glob("*.checkpoint")).read_bytes()


def placed(body: bytes, folder: Path) -> None:
    """The only checkpoint of a folder, with the sum that belongs to it."""
    for path in folder.glob("*.checkpoint"):
        path.unlink()
    head = b"hierfl checkpoint " + hashlib.sha256(body).hexdigest().encode() + b"\n"
    (folder / "000001.checkpoint").write_bytes(head + body)


def body_of(checkpoint: bytes) -> bytes:
    return checkpoint.partition(b"\n")[2]


def test_every_array_of_a_checkpoint_is_required(checkpoint: bytes, tmp_path: Path) -> None:
    """Also where its sum is right; none is missed, and the run is not taken for completed."""
    body = body_of(checkpoint)
    with np.load(io.BytesIO(body)) as stored:
        names = stored.files
    assert {"0/history/objective", "0/state/0", "0/path/x", "note"} <= set(names)
    for name in names:
        placed(rewritten(body, lambda arrays, name=name: arrays.pop(name)), tmp_path)
        with pytest.raises(hf.CheckpointError, match=f"can be read .*{'no note' if name == 'note' else name}"):
            solve(tmp_path, resume=True)
    placed(body, tmp_path)
    assert solve(tmp_path, resume=True).ended == "completed"


@pytest.mark.parametrize(
    "change",
    [
        noted(lambda note: note.pop("runs")),
        noted(lambda note: note.update(runs=[])),
        noted(lambda note: note.pop("identity")),
        noted(lambda note: note.update(identity=[])),
        noted(lambda note: note.pop("found")),
        noted(lambda note: note["runs"][0].pop("leaves")),
        noted(lambda note: note["runs"][0].update(leaves=[9, 0])),
        noted(lambda note: note["runs"][0].update(leaves=[0, 0])),
        noted(lambda note: note["runs"][0].update(rounds="all")),
        lambda arrays: arrays.update({"0/state/0": np.zeros(77)}),
    ],
)
def test_a_checkpoint_that_no_run_has_written_is_one_kind_of_error(
    change: Change, checkpoint: bytes, tmp_path: Path
) -> None:
    placed(rewritten(body_of(checkpoint), change), tmp_path)
    with pytest.raises(hf.CheckpointError, match="is not what this run has written"):
        solve(tmp_path, resume=True)


def test_checkpoints_take_no_memory_for_what_they_claim(tmp_path: Path) -> None:
    lies = [
        archive({"note.npy": array("{}"), "a.npy": header((10**12,))}),
        archive({"note.npy": array("{}"), "a.npy": array(np.zeros(20_000_000))}, packed=True),
    ]
    for lie in lies:
        placed(lie, tmp_path)
        with memory_below(40 << 20), pytest.raises(hf.CheckpointError, match="can be read"):
            solve(tmp_path, resume=True)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**63))
def test_mutated_checkpoints_are_one_kind_of_error(seed: int, checkpoint: bytes, tmp_path: Path) -> None:
    """Their sums are right."""
    draw = random.Random(seed)
    for _ in range(MANY):
        placed(mutated(body_of(checkpoint), draw), tmp_path)
        try:
            assert solve(tmp_path, resume=True).ended == "completed"
        except hf.CheckpointError as error:
            assert str(tmp_path) in str(error)


# --- what clients remember ---------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**63))
def test_mutated_memories_are_one_kind_of_error(seed: int) -> None:
    memory, clients, draw = (
        {"control": jnp.arange(6.0).reshape(2, 3), "steps": jnp.array([1, 2])},
        {3: 0, 5: 1},
        random.Random(seed),
    )
    whole = memory_bytes(memory, clients)
    for _ in range(MANY):
        try:
            again = memory_of(mutated(whole, draw), memory, clients)
        except hf.SiteError:
            continue
        np.testing.assert_array_equal(again["control"], memory["control"])


def test_every_array_of_a_memory_is_required() -> None:
    memory, clients = [jnp.arange(2.0), jnp.arange(2.0), jnp.arange(2.0)], {3: 0, 5: 1}
    whole = memory_bytes(memory, clients)
    for name in ("clients", "0", "1", "2"):
        with pytest.raises(hf.SiteError, match="is damaged|of another algorithm"):
            memory_of(rewritten(whole, lambda arrays, name=name: arrays.pop(name)), memory, clients)

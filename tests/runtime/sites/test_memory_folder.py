"""What clients remember on their owner's disk: whole or not there, of the clients and the algorithm that it was kept of."""

from __future__ import annotations

import stat
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.sites.memory_folder import MemoryFolder, memory_bytes, memory_of

RUN, OTHER = "0f" * 16, "ab" * 16
CLIENTS = {3: 0, 5: 1}
MEMORY = {"control": jnp.arange(6.0).reshape(2, 3), "steps": jnp.array([1, 2])}


def test_what_is_kept_is_read_again_and_three_of_each_run_stay(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path / "made" / "here")
    for number in range(1, 13):
        folder.keep(RUN, number, str(number).encode())
    folder.keep(OTHER, 1, b"other")
    assert [folder.read(RUN, number) for number in (10, 11, 12)] == [b"10", b"11", b"12"]
    assert folder.read(OTHER, 1) == b"other"
    assert len(list(folder.path.iterdir())) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()} == {0o600}
    with pytest.raises(hf.SiteError, match="not at the site any more"):
        folder.read(RUN, 9)
    folder.keep(RUN, 12, b"again")  # by a server that had not come to write its own
    assert folder.read(RUN, 12) == b"again"


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "0f/0f", "0F" * 16, "*"])
def test_a_server_cannot_choose_the_place(name: str, tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path / "here")
    for ask in (lambda: folder.keep(name, 1, b"x"), lambda: folder.read(name, 1), lambda: folder.keep(RUN, -1, b"x")):
        with pytest.raises(hf.SiteError, match="which no server's is"):
            ask()
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(hf.SettingError, match="--keep .* no folder can be made there"):
        MemoryFolder(tmp_path / "file" / "folder")


def test_memories_are_of_their_clients_and_their_algorithm() -> None:
    content = memory_bytes(MEMORY, CLIENTS)
    again = memory_of(content, {name: jnp.zeros_like(leaf) for name, leaf in MEMORY.items()}, CLIENTS)
    for name, leaf in MEMORY.items():
        np.testing.assert_array_equal(again[name], leaf)
        assert again[name].dtype == leaf.dtype
    with pytest.raises(hf.SiteError, match=r"of clients \[3, 5\], and this site holds \[3, 4\]"):
        memory_of(content, MEMORY, {3: 0, 4: 1})
    for unlike in ({"control": MEMORY["control"]}, MEMORY | {"control": jnp.zeros((2, 4))}):
        with pytest.raises(hf.SiteError, match="of another algorithm"):
            memory_of(content, unlike, CLIENTS)


def test_a_full_disk_keeps_no_part_and_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = MemoryFolder(tmp_path)
    folder.keep(RUN, 1, b"before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hierfl.runtime.sites.memory_folder.os.fsync", full)
    with pytest.raises(hf.SiteError, match=r"took nothing of 5 bytes \(No space left on device\)"):
        folder.keep(RUN, 2, b"after")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [f"{RUN}-000000001.memory"] and folder.read(
        RUN, 1
    ) == b"before"

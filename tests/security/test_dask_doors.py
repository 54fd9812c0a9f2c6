"""What can be had of a site on Dask by whoever reaches it: nothing but what a run's own messages tell, and no code runs anywhere."""

from __future__ import annotations

import asyncio
import pickle
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, Worker, WorkerPlugin
from distributed.comm import connect, listen
from distributed.protocol.serialize import ToPickle, to_serialize

import hierfl as hf
from hierfl.command.loading import load_problem
from hierfl.runtime.on_dask.dask_servers import connected
from hierfl.runtime.on_dask.lines import ASKED, HEADER, HELLO, LARGEST, MARK, SiteLine, framed, heard
from hierfl.runtime.on_dask.site_process import TLSFiles, listening_host
from hierfl.runtime.sites.letters import Hello, Letter, letter_of, reply_of
from hierfl.runtime.sites.parcels import Lost, Refusal
from hierfl.solvers import FedAvg
from tests.runtime.on_dask.certificates import Authority, free_port
from tests.runtime.study import processes, site_command, study_in

NUMBERS = np.random.default_rng(1).standard_normal(18)  # the site's
STARTING, ENDED = 90.0, 10.0  # seconds


class Trap:
    """Touches a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


class Touch:
    """What a hostile client would have a worker do: touch a file when it is called or made."""

    def __init__(self, marker: str) -> None:
        Path(marker).touch()


class TouchingPlugin(WorkerPlugin):
    """The same as a plugin."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def setup(self, worker: Any) -> None:
        Path(self.marker).touch()


class Doors:
    """A scheduler as Dask has it, a site that has joined it, and certificates of all kinds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marker, self.port = folder, folder / "marker", free_port()
        self.study = study_in(folder, "door_study", north=6)
        self.authority, self.stranger = Authority(folder, "ca"), Authority(folder, "other")
        roles = {"server": "server", "scheduler": "scheduler", "north": "site:north", "south": "site:south", "bare": None}
        self.files = {name: self.authority.files(name, role) for name, role in roles.items()}
        self.files["stranger"] = self.stranger.files("stranger", "server")
        self.problem = load_problem(f"{self.study}:declared")

    def command(self, address: str, files: TLSFiles, *more: str) -> list[str]:
        return site_command(self.study, "north", address, "--log", str(self.folder / "site.log"), *more, files=files)

    def solved(self, address: str, **settings: Any) -> hf.Result:
        with hf.runtime.Dask(address, security=self.files["server"].security(), **settings) as runtime:
            return self.problem.solve(FedAvg(step_size=0.05), runtime=runtime, rounds=3, progress=False)

    def require_untouched(self, address: str) -> None:
        """Nothing was run, and the site still answers those whom it may."""
        assert not self.marker.exists()
        assert self.solved(address, minimum=1, patience=STARTING).ended == "completed"

    def connection(self, who: str) -> socket.socket:
        """To the site's door."""
        plain = socket.create_connection(("127.0.0.1", self.port), ENDED)
        return self.files[who].security().get_connection_args("client")["ssl_context"].wrap_socket(plain)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Doors:
    return Doors(tmp_path_factory.mktemp("doors"))


@contextmanager
def scheduling(files: TLSFiles) -> Iterator[LocalCluster]:
    """A scheduler as Dask has it."""
    with LocalCluster(n_workers=0, protocol="tls://", security=files.security(), dashboard_address=None) as cluster:
        yield cluster


def wait_for_workers(cluster: LocalCluster) -> None:
    until = time.monotonic() + STARTING
    while not cluster.scheduler_info["workers"] and time.monotonic() < until:
        time.sleep(0.1)


@pytest.fixture(scope="module")
def address(doors: Doors) -> Iterator[str]:
    with scheduling(doors.files["scheduler"]) as cluster:
        where = cluster.scheduler_address
        with processes(doors.command(where, doors.files["north"], "--host", "127.0.0.1", "--port", str(doors.port))) as (doors.process,):
            wait_for_workers(cluster)
            yield where


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Where a process and its children listen."""
    found = set()
    for one in [process, *process.children(recursive=True)]:
        found |= {tuple(c.laddr) for c in one.net_connections() if c.status == psutil.CONN_LISTEN}
    return found


def told(connection: socket.socket, sent: bytes) -> bytes:
    """What a door answers to some bytes, until it ends the connection."""
    heard = b""
    with connection, suppress(OSError):
        connection.sendall(sent)
        connection.settimeout(ENDED)
        while chunk := connection.recv(1 << 16):
            heard += chunk
    return heard


@pytest.mark.slow
def test_there_is_one_door_where_it_was_asked_for_and_no_page(doors: Doors, address: str) -> None:
    assert listening(psutil.Process(doors.process.pid)) == {("127.0.0.1", doors.port)}
    for who in ("server", "south"):
        assert told(doors.connection(who), b"GET / HTTP/1.1\r\nHost: site\r\n\r\n") == b""
    with socket.create_connection(("127.0.0.1", doors.port)) as plain:
        assert b"HTTP" not in told(plain, b"GET / HTTP/1.1\r\nHost: site\r\n\r\n")
    doors.require_untouched(address)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["server", "south"])
def test_a_client_of_dasks_has_nothing_done(who: str, doors: Doors, address: str) -> None:
    """A function, an actor, a plugin, a file: by the scheduler, which takes them."""
    marker = str(doors.marker)
    with Client(address, security=doors.files[who].security(), set_as_default=False, timeout=STARTING) as client:
        (worker,) = client.scheduler_info(n_workers=-1)["workers"]
        futures = [
            client.submit(Touch, marker, pure=False),
            client.submit(Touch, marker, pure=False, workers=[worker], allow_other_workers=False),
            client.submit(Touch, marker, actor=True, workers=[worker], pure=False),
        ]
        for call in (
            lambda: client.run(Touch, marker),
            lambda: client.run(Touch, marker, workers=[worker]),
            lambda: client.register_plugin(TouchingPlugin(marker)),
            lambda: client.upload_file(str(doors.study)),
            lambda: client.scatter(np.ones(3), workers=[worker]),
            lambda: client.sync(client.scheduler.proxy, worker=worker, msg={"op": "get_data", "keys": ["a"]}),
        ):
            with suppress(Exception):  # some raise, some are never answered
                client.sync(asyncio.wait_for, asyncio.to_thread(call), 5)
        time.sleep(1.0)
        assert all(future.status == "pending" for future in futures)
        client.cancel(futures, force=True)
    doors.require_untouched(address)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["server", "scheduler", "south", "bare", "stranger"])
def test_none_of_a_workers_words_is_known_at_the_door(who: str, doors: Doors, address: str) -> None:
    names = {"identity", "echo", "connection_stream", "dump_state", "run", "run_coroutine", "get_data", "update_data"}
    names |= {"gather", "free_keys", "terminate", "ping", "upload_file", "call_stack", "profile", "get_logs", "keys"}
    names |= {
        "versions", "actor_execute", "actor_attribute", "plugin-add", "plugin-remove", "benchmark_disk", "get_story",
    }
    arguments = doors.files[who].security().get_connection_args("client")
    payload = {"function": to_serialize(Touch), "args": (str(doors.marker),), "plugin": ToPickle(Trap(doors.marker))}

    async def asked(name: str) -> Any:
        comm = await connect(f"tls://127.0.0.1:{doors.port}", timeout=ENDED, **arguments)
        await comm.write({"op": name, "reply": True, **payload})
        return await comm.read()

    for name in names:
        with pytest.raises((OSError, TimeoutError)):
            asyncio.run(asyncio.wait_for(asked(name), ENDED))
    doors.require_untouched(address)
    assert hasattr(Worker, "actor_execute")  # what is asked for above is there in Dask's own


@pytest.mark.slow
@pytest.mark.parametrize("who", ["scheduler", "south", "bare"])
def test_another_role_than_the_servers_gets_no_answer(who: str, doors: Doors, address: str) -> None:
    letter = framed(ASKED + letter_of(Hello()).as_bytes())
    assert told(doors.connection("server"), framed(HELLO + b"me") + letter + b"end of it")  # what an answer is
    for sent in (framed(HELLO + b"me"), framed(HELLO + b"me") + letter, letter):
        assert told(doors.connection(who), sent) == b""
    assert "its certificate says" in (doors.folder / "site.log").read_text()
    doors.require_untouched(address)


def hostile(draws: random.Random, marker: Path) -> bytes:
    """What somebody with the server's certificate may send, who has broken in there."""
    hello = framed(HELLO + b"me")
    letter = Letter({"message": "Asked", "turn": -1, "step": "local_steps", "kind": "map"}, {"clients": np.arange(2)})
    trap = pickle.dumps(Trap(marker))
    whole = bytearray(hello + framed(ASKED + letter.as_bytes()))
    for _ in range(draws.randint(1, 20)):
        whole[draws.randrange(len(whole))] = draws.randrange(256)
    return draws.choice(
        [
            draws.randbytes(draws.randrange(1, 300)),
            hello[: draws.randrange(1, len(hello))],
            HEADER.pack(MARK, draws.choice([LARGEST + 1, 2**63, 2**64 - 1])) + b"!",
            HEADER.pack(MARK, LARGEST) + b"!" + draws.randbytes(100),
            HEADER.pack(MARK, 0),
            hello + framed(ASKED + trap),
            hello + framed(trap),
            framed(b"=" + trap),
            framed(ASKED + letter.as_bytes()),
            hello + framed(ASKED + letter.as_bytes()) * 3,
            hello * 3,
            framed(HELLO + draws.randbytes(65)),
            bytes(whole),
        ]
    )


@pytest.mark.slow
def test_three_hundred_hostile_requests(doors: Doors, address: str) -> None:
    process, draws, back = psutil.Process(doors.process.pid), random.Random(0), []
    before = process.memory_info().rss
    for _ in range(300):
        with doors.connection("server") as connection:
            connection.sendall(hostile(draws, doors.marker))
            with suppress(OSError):
                connection.settimeout(0.05)
                while chunk := connection.recv(1 << 16):
                    back.append(chunk)
    assert process.is_running() and process.memory_info().rss - before < 100e6
    assert not [word for word in (row.tobytes() for row in NUMBERS) if word in b"".join(back)]
    doors.require_untouched(address)


@pytest.mark.slow
def test_a_caller_that_says_nothing_keeps_nobody_waiting(doors: Doors, address: str) -> None:
    silent = [doors.connection("server") for _ in range(8)]
    silent[0].sendall(MARK)
    plain = [socket.create_connection(("127.0.0.1", doors.port)) for _ in range(8)]  # no handshake either
    began = time.monotonic()
    doors.require_untouched(address)
    assert time.monotonic() - began < STARTING / 2
    for connection in (*silent, *plain):
        connection.close()


@pytest.mark.slow
def test_a_stranger_does_not_join_under_anothers_name(doors: Doors) -> None:
    """With a partner's certificate, once the other one has stopped: the scheduler takes it, and the server does not."""
    with (
        scheduling(doors.files["scheduler"]) as cluster,
        processes(doors.command(cluster.scheduler_address, doors.files["south"], "--name", "north")),
    ):
        wait_for_workers(cluster)
        with pytest.raises(hf.SiteError, match="its certificate says hierfl:site:south, not hierfl:site:north"):
            doors.solved(cluster.scheduler_address, patience=0.5)


@pytest.mark.slow
def test_a_site_does_not_take_another_site_for_the_scheduler(doors: Doors) -> None:
    with scheduling(doors.files["south"]) as cluster:
        command = doors.command(cluster.scheduler_address, doors.files["north"])
        tried = subprocess.run(command, capture_output=True, text=True, timeout=STARTING)
        assert tried.returncode == 2 and "hierfl:site:south, not hierfl:scheduler" in tried.stderr
        with pytest.raises(hf.SiteError, match="hierfl:site:south, not hierfl:scheduler"):
            doors.solved(cluster.scheduler_address, patience=0.5)


def test_a_hostile_scheduler_runs_nothing_where_its_words_are_read(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    trap = ToPickle(Trap(marker))

    async def answered(comm: Any) -> None:
        await comm.read()
        await comm.write({"workers": {"there": {"name": trap, "more": to_serialize(Trap(marker))}}})

    async def asked(connecting: Any) -> Any:
        server = await listen("tcp://127.0.0.1:0", answered)
        greeted = server.on_connection
        server.on_connection = lambda comm: greeted(comm, {"more": trap})
        comm = await connecting(server.contact_address)
        await comm.write({"op": "identity"})
        try:
            return await comm.read()
        finally:
            comm.abort()
            server.stop()

    found = asyncio.run(asked(lambda place: connected(place, {}, 5.0)))
    assert found == {"workers": {"there": {"name": None, "more": None}}} and not marker.exists()
    asyncio.run(asked(connect))
    assert marker.exists()  # as Dask's own connections do


def test_a_scheduler_that_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError, match="no scheduler answered there within 0.3 s"):
        asyncio.run(asyncio.wait_for(connected(f"tcp://127.0.0.1:{silent.getsockname()[1]}", {}, 0.3), 20.0))


def test_a_hostile_site_runs_nothing_at_the_server(tmp_path: Path) -> None:
    """Its answers are letters or refused, its frames are whole and asked for, or the line is ended."""
    marker = tmp_path / "marker"
    for expected in (None, (np.zeros(2), {})):
        assert isinstance(reply_of(pickle.dumps(Trap(marker)), expected), Refusal)
    assert not marker.exists()
    for sent, asked in (
        (HEADER.pack(MARK, LARGEST + 1), True),
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (framed(b"a") + b"more", True),
        (framed(b"nobody asked"), False),
    ):
        here, there = socket.socketpair()
        with here, there:
            line = SiteLine(here)
            line.send(HELLO, 1.0)
            line.waits = asked
            there.sendall(sent)
            assert isinstance(heard({"site": line}, 5.0)["site"], Lost)


@pytest.fixture(scope="module")
def closed(doors: Doors) -> Iterator[str]:
    """A scheduler of hierfl's own with the site ``north``."""
    port, files = free_port(), doors.files["scheduler"]
    tls = ["--tls-ca", files.ca, "--tls-cert", files.cert, "--tls-key", files.key]
    where, command = f"tls://127.0.0.1:{port}", [sys.executable, "-m", "hierfl.command.main", "scheduler", "--port", str(port), *tls]
    with processes(command, doors.command(where, doors.files["north"])) as (doors.scheduler, _):
        yield where


@pytest.mark.slow
def test_at_hierfls_own_scheduler_nobody_has_anything_done(doors: Doors, closed: str) -> None:
    """No clients, no functions, no pickles, no other's name, no page; and the server finds its sites."""
    doors.require_untouched(closed)
    assert listening(psutil.Process(doors.scheduler.pid)) == {("127.0.0.1", int(closed.rsplit(":")[-1]))}
    for who in ("server", "south"):
        with pytest.raises((OSError, TimeoutError)):
            Client(closed, security=doors.files[who].security(), set_as_default=False, timeout=3)
    arguments = doors.files["south"].security().get_connection_args("client")
    trap = {"function": to_serialize(Trap(doors.marker)), "plugin": ToPickle(Trap(doors.marker))}

    async def asked(word: str) -> Any:
        comm = await connect(closed, timeout=ENDED, **arguments)
        await comm.write({"op": word, "reply": True, **trap})
        answer = await comm.read()
        comm.abort()
        return answer

    for word in (
        "identity", "run_function", "proxy", "broadcast", "terminate", "retire_workers", "unregister", "restart",
    ):
        with suppress(OSError):
            answer = asyncio.run(asyncio.wait_for(asked(word), ENDED))
            assert answer is None or answer["status"] == "uncaught-error"
    tried = subprocess.run(
        doors.command(closed, doors.files["south"], "--name", "west"), capture_output=True, text=True, timeout=STARTING
    )
    assert tried.returncode == 2 and "its certificate says hierfl:site:south, not hierfl:site:west" in tried.stderr
    doors.require_untouched(closed)


LOCAL, TLS = ("127.0.0.1", "localhost", "[::1]"), TLSFiles("ca.pem", "site.pem", "site.key")


def test_in_the_clear_a_site_stays_on_its_machine() -> None:
    for host in LOCAL:
        assert listening_host(f"tcp://{host}:8786", TLSFiles(), None, False) in ("127.0.0.1", "::1")
    for scheduler, host in (("tcp://192.0.2.1:8786", None), ("tcp://127.0.0.1:8786", "192.0.2.7")):
        with pytest.raises(hf.SettingError, match=r"in the clear.*--tls-ca.*or --insecure"):
            listening_host(scheduler, TLSFiles(), host, False)
    assert listening_host("tcp://127.0.0.1:8786", TLSFiles(), "192.0.2.7", True) == "192.0.2.7"
    assert listening_host("tls://127.0.0.1:8786", TLS, None, False) == "127.0.0.1"
    for host in ("0.0.0.0", "::", "", "*", "0", "::0", "0:0:0:0:0:0:0:0"):
        with pytest.raises(hf.SettingError, match="listen at one address"):
            listening_host("tls://127.0.0.1:8786", TLS, host, True)
    for scheduler in ("tls://server", "http://server:1", "server:1"):
        with pytest.raises(hf.SettingError, match="tcp://host:port or tls://host:port"):
            listening_host(scheduler, TLS, None, False)


@pytest.mark.slow
def test_sites_on_this_machine_open_no_port() -> None:
    from tests.runtime.on_dask.test_dask_runtime import clients_alone

    this = psutil.Process()
    before = listening(this)
    with hf.runtime.Dask(sites=2) as runtime:
        clients_alone().solve(FedAvg(step_size=0.05), runtime=runtime, rounds=2, progress=False)
        assert len(this.children(recursive=True)) >= 2 and listening(this) == before

"""A SuperLink and SuperNodes on this machine, with TLS and keys, started and stopped by tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.runtime.on_dask.certificates import Authority, free_port

BIN = Path(sys.executable).parent
CONFIGURATION = """
[superlink]
default = "loop"

[superlink.loop]
address = "{address}"
root-certificates = "{ca}"
"""


class Loop:
    """The folder, the addresses and the processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.authority = Authority(folder, "ca")
        self.files = self.authority.files("server", host="127.0.0.1")
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(CONFIGURATION.format(address=self.address, ca=folder / "ca.pem"))
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.env = os.environ | quiet | {"PATH": path, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A process whose output is in ``name.out``."""
        with (self.folder / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        self.processes[name] = process
        return process

    def superlink(self) -> None:
        """The SuperLink, which takes only nodes whose keys are registered."""
        tls = ["--ssl-ca-certfile", self.files.ca, "--ssl-certfile", self.files.cert, "--ssl-keyfile", self.files.key]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        offline = "--disable-runtime-dependency-installation"
        self.start("superlink", "flower-superlink", *map(str, tls), *where, "--enable-supernode-auth", offline)
        self.until(lambda: "Uvicorn running" in self.output("superlink"), "the SuperLink")

    def supernode(self, name: str, config: str, ca: str = "ca.pem") -> subprocess.Popen[bytes]:
        """A SuperNode with the key of a name."""
        key = self.folder / f"{name}_key"
        if not key.exists():
            write_key(key)
        link = ["--superlink", self.address, "--root-certificates", ca, "--auth-supernode-private-key", str(key)]
        own = ["--port", str(free_port()), "--node-config", config, "--max-retries", "2"]
        return self.start(f"supernode_{name}", "flower-supernode", *link, *own)

    def register(self, name: str) -> None:
        """Register the key of a name."""
        write_key(self.folder / f"{name}_key")
        self.flwr("supernode", "register", f"{name}_key.pub", "loop")

    def flwr(self, *arguments: str, timeout: float = 60.0) -> str:
        """What a command of Flower's prints."""
        command = ["flwr", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def until(self, condition: object, what: str, seconds: float = 60.0) -> None:
        """Wait for something."""
        end = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < end, f"{what} did not come: {[self.output(name) for name in self.processes]}"
            time.sleep(0.1)

    def left(self) -> list[list[str]]:
        """The processes that name the folder or the address."""
        own = (str(self.folder), self.address)
        return [
            p.info["cmdline"]
            for p in psutil.process_iter(["cmdline"])
            if any(o in " ".join(p.info["cmdline"] or ()) for o in own)
        ]

    def stop(self) -> None:
        """End what was started; what Flower started ends with it."""
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


def write_key(path: Path) -> None:
    """A key as ``ssh-keygen -t ecdsa -b 384`` writes it."""
    key = ec.generate_private_key(ec.SECP384R1())
    formats = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*formats))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public)


@contextmanager
def looping(folder: Path) -> Iterator[Loop]:
    """A loop with its SuperLink, ended with everything that it started."""
    loop = Loop(folder)
    try:
        loop.superlink()
        yield loop
    finally:
        loop.stop()
    loop.until(lambda: not loop.left(), "the end of every process")

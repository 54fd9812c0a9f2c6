"""``hierfl scheduler``: a scheduler of Dask's that is a list of sites, and does nothing else for anybody.

Sites register, each under the name that its certificate says, and tell that they live; the server asks who is there. Clients, tasks and
functions are none of its words, so that a site cannot run code here, nor end another's registration.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from typing import Any

from distributed import Scheduler, Security
from distributed.comm.core import Comm
from distributed.metrics import time

from hierfl.runtime.on_dask.plain_comms import read_plainly
from hierfl.runtime.on_dask.roles import SERVER, site_role, unlike
from hierfl.runtime.on_dask.stripped import Stripped

LOG = logging.getLogger("hierfl.site")
USUAL = ("keep-alive", "worker-status-change", "log-event")  # what workers send, and nothing has to be done about


class ClosedScheduler(Stripped, Scheduler):
    """The scheduler; its settings are those of :class:`distributed.Scheduler`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(extensions={}, plugins=(), dashboard=False, **settings)
        words: dict[str, Any] = {"identity": self._named, "register-worker": self._registered, "heartbeat_worker": self._alive}
        self.strip(words, dict.fromkeys(USUAL, lambda **_: None))

    async def _named(self, comm: Comm, n_workers: int = -1) -> Any:
        """Who is there: for the server."""
        self._require(comm, SERVER)
        return self.identity(n_workers=n_workers)

    async def _registered(self, comm: Comm, **said: Any) -> None:
        """A site joins; the answer is written here, and the connection stays."""
        wrong = self._wrong(comm, site_role(str(said.get("name"))))
        if wrong is None:
            return await self.add_worker(comm, **said)
        LOG.warning("refused a site %.40r from %s: %s", said.get("name"), comm.peer_address, wrong)
        await comm.write({"status": "error", "message": wrong, "time": time()})

    async def _alive(self, comm: Comm, **said: Any) -> Any:
        """A site lives."""
        known = self.workers.get(self.coerce_address(str(said.get("address"))))
        if known is None:
            return {"status": "missing"}
        self._require(comm, site_role(str(known.name)))
        return self.heartbeat_worker(**said)

    def _wrong(self, comm: Comm, *roles: str) -> str | None:
        return unlike(_certificate(comm), *roles) if self.address.startswith("tls://") else None

    def _require(self, comm: Comm, *roles: str) -> None:
        wrong = self._wrong(comm, *roles)
        if wrong is not None:
            LOG.warning("refused a word from %s: %s", comm.peer_address, wrong)
            raise PermissionError(wrong)


def _certificate(comm: Comm) -> Any:
    return comm.extra_info.get("peercert")


async def scheduling(host: str, port: int, security: Security | None) -> None:
    """Be the scheduler until the process is ended. Raises ``OSError`` where it cannot listen."""
    read_plainly()
    protocol = "tcp" if security is None else "tls"
    with tempfile.TemporaryDirectory(prefix="hierfl-scheduler-") as folder:
        settings = {"protocol": protocol, "security": security or Security(), "local_directory": folder}
        async with ClosedScheduler(host=host, port=port, **settings) as scheduler:
            LOG.info("a scheduler listens at %s", scheduler.address)
            await asyncio.shield(scheduler.finished())

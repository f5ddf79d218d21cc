"""Workers on the nodes of a Ray cluster, through a gateway process."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from typing import Any

from hsdag.fleet.job import Exchange, Findings, Job, JobLost
from hsdag.fleet.messages import Abandon, Begin, Connected, Ended, Found, Lost, Refused, answer_of, missing
from hsdag.fleet.pool import Host
from hsdag.ir.errors import DeviceError

COMMAND = (sys.executable, "-m", "hsdag.fleet.gateway")
EXCHANGE_S = 0.25
"""How often the gateway hears what the search has found."""
CONNECT_LIMIT_S = 120.0
EXIT_LIMIT_S = 5.0
ABANDON_LIMIT_S = 10.0
"""Within which a job has to end once nobody needs it; the gateway kills its worker before that."""


class Cluster:
    """A connection to a cluster: its gateway, and a host for each processor. Raises DeviceError where there is none."""

    def __init__(self, address: str) -> None:
        self._connection, theirs = Pipe()
        self._lock = threading.Lock()
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the cluster
        with theirs:
            self._process = subprocess.Popen(
                [*COMMAND, address],
                stdin=theirs.fileno(),
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=environment,
            )
        self.hosts = [ClusterHost(self, number, name) for number, name in enumerate(self._slots())]
        threading.Thread(target=self._listen, daemon=True).start()

    def _slots(self) -> tuple[str, ...]:
        """Where the slots are."""
        try:
            first = self._connection.recv() if self._connection.poll(CONNECT_LIMIT_S) else Refused("it does not answer")
        except (EOFError, OSError):
            first = Refused(self._last_line())
        if isinstance(first, Connected) and first.slots:
            return first.slots
        self.close()
        raise DeviceError(
            f"no Ray cluster to work on: {first.reason if isinstance(first, Refused) else 'it has no processors'}; "
            "start one with `ray start --head`, or name its address in --workers ray://HOST:PORT"
        )

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else "the gateway ended"

    def send(self, message: object) -> None:
        """Send the gateway a message; one that is gone gets none."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send(message)

    def _listen(self) -> None:
        """Hand over what comes from the gateway; when it ends, all hosts are gone."""
        with contextlib.suppress(Exception):  # whatever ends the connection, or comes in pieces
            while True:
                message = self._connection.recv()
                self.hosts[message.slot].inbox.put(message)
        for host in self.hosts:
            host.inbox.put(Lost(host.number, "the connection to the cluster is lost", is_gone=True))

    def close(self) -> None:
        """End the gateway, and with it the workers."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as ending:
            ending.shutdown(socket.SHUT_RDWR)  # closing alone would not end a thread that reads, nor tell the gateway
        self._connection.close()
        try:
            self._process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class ClusterHost(Host):
    """One processor of a node; it is gone when its node is, or the connection."""

    def __init__(self, cluster: Cluster, number: int, name: str) -> None:
        self.name, self.number = name, number
        self.inbox: queue.SimpleQueue[Found | Ended | Lost] = queue.SimpleQueue()
        self._cluster, self._is_gone = cluster, False
        self._kept: set[str] = set()

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:
        """As Host says."""
        self._cluster.send(Begin(self.number, job, tuple(missing(self._kept, job.needs))))
        told, over_s = Findings(), float("inf")
        while True:
            with contextlib.suppress(queue.Empty):
                message = self.inbox.get(timeout=EXCHANGE_S)
                if isinstance(message, Ended):
                    return answer_of(message.outcome)
                if isinstance(message, Lost):
                    self._kept.clear()
                    self._is_gone = message.is_gone
                    raise JobLost(message.reason)
                exchange(message.findings)
            if is_over() and over_s == float("inf"):
                over_s = time.monotonic()
                self._cluster.send(Abandon(self.number))
            if time.monotonic() - over_s > ABANDON_LIMIT_S:
                self._is_gone = True
                raise JobLost("it did not end when it should")
            known = exchange(Findings())
            if known != told:
                told = known
                self._cluster.send(Found(self.number, known))

    def revive(self) -> bool:
        """Whether the node is there."""
        return not self._is_gone

"""The gateway: a process of its own that speaks to a Ray cluster, for Ray ends its driver when the head is lost.

Each slot is one processor of a node, with an actor on it that computes one job at a time. Messages go through the
socket that the process has as stdin.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hsdag.fleet.job import Findings
from hsdag.fleet.messages import Abandon, Begin, Connected, Ended, Found, Lost, Outcome, Refused
from hsdag.fleet.remote import RemoteWorker
from hsdag.ir.processes import die_with_parent
from hsdag.version import __version__

EXCHANGE_S, PATIENCE_S = 0.25, 5.0
"""How often findings are exchanged, and how long a job may take to end once nobody needs it."""
START_LIMIT_S, CALL_LIMIT_S = 120.0, 30.0
"""Within which a worker has to start, and to answer what is no job."""


class NodeUnusable(Exception):  # noqa: N818 - an ending we expect, not an error
    """No worker of this hsdag can be had on a node."""


@dataclass(eq=False)
class Slot:
    """One processor of a node, the actor on it, if there is one, the jobs for it, and since when nobody needs the
    present one."""

    number: int
    node_id: str
    name: str
    actor: Any = None
    jobs: queue.SimpleQueue[Begin] = field(default_factory=queue.SimpleQueue)
    known: Findings = field(default_factory=Findings)
    over_s: float = math.inf

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody needs the job."""
        return self.over_s < math.inf


class Gateway:
    """Slots of a cluster, each with a thread. Raises ConnectionError where there is no cluster."""

    def __init__(self, address: str, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        ray.init(address=address, namespace="hsdag", log_to_driver=False, logging_level=logging.ERROR)
        self._remote: Any = ray.remote(RemoteWorker)
        places = [
            (node["NodeID"], f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})")
            for node in _nodes()
            if node["Alive"]
            for _ in range(int(node["Resources"].get("CPU", 0)))
        ]
        self.slots = [Slot(number, *place) for number, place in enumerate(places)]

    def serve(self) -> None:
        """Answer until the client is gone."""
        self._send(Connected(tuple(slot.name for slot in self.slots)))
        for slot in self.slots:
            threading.Thread(target=self._work, args=(slot,), daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                if isinstance(message, Begin):
                    self.slots[message.slot].over_s, self.slots[message.slot].known = math.inf, Findings()
                    self.slots[message.slot].jobs.put(message)
                elif isinstance(message, Abandon):
                    self.slots[message.slot].over_s = time.monotonic()
                elif isinstance(message, Found):
                    self.slots[message.slot].known = message.findings

    def _send(self, message: object) -> None:
        with self._lock, contextlib.suppress(OSError):  # of a client that is gone
            self._connection.send(message)

    def _work(self, slot: Slot) -> None:
        while True:
            begin = slot.jobs.get()
            try:
                self._send(Ended(slot.number, self._compute(slot, begin)))
            except Exception as error:  # noqa: BLE001 - whatever Ray raises, the client is told
                with contextlib.suppress(Exception):
                    ray.kill(slot.actor)
                slot.actor = None
                is_gone = isinstance(error, NodeUnusable) or not _is_alive(slot)
                self._send(Lost(slot.number, _line(error), is_gone))

    def _compute(self, slot: Slot, begin: Begin) -> Outcome:
        """What a job answered or raised. Raises what Ray does, or TimeoutError, when its worker is lost."""
        if slot.actor is None:
            self._start(slot)
        for value in begin.values:  # one after another: the first may have the others forgotten
            _answer(slot, slot.actor.keep.remote(value), START_LIMIT_S)
        reference, told = slot.actor.compute.remote(begin.job), Findings()
        while not ray.wait([reference], timeout=EXCHANGE_S)[0]:
            _check(slot)
            known = replace(slot.known, is_over=slot.known.is_over or slot.is_abandoned)
            found: Findings = _answer(slot, slot.actor.swap.remote(known), CALL_LIMIT_S)
            if found != told:
                told = found
                self._send(Found(slot.number, found))
        outcome: Outcome
        outcome, found = ray.get(reference)
        self._send(Found(slot.number, found))
        return outcome

    def _start(self, slot: Slot) -> None:
        """Start a worker on the node. Raises NodeUnusable where none starts, or one of another hsdag."""
        strategy = NodeAffinitySchedulingStrategy(slot.node_id, soft=False)
        slot.actor = self._remote.options(num_cpus=1, max_concurrency=2, scheduling_strategy=strategy).remote()
        try:
            version = _answer(slot, slot.actor.version.remote(), START_LIMIT_S)
        except (RayError, TimeoutError) as error:
            if slot.is_abandoned:
                raise
            raise NodeUnusable(f"no worker starts: {error}") from error
        if version != __version__:
            raise NodeUnusable(f"it has hsdag {version}, this machine has {__version__}")


def _check(slot: Slot) -> None:
    """Raise TimeoutError where a worker goes on for long although nobody needs its job."""
    if time.monotonic() - slot.over_s > PATIENCE_S:
        raise TimeoutError("it did not end when it should")


def _answer(slot: Slot, reference: Any, limit_s: float) -> Any:
    """What a worker answers. Raises RayError when it is lost, TimeoutError when the answer takes too long."""
    begin_s = time.monotonic()
    while not ray.wait([reference], timeout=EXCHANGE_S)[0]:
        _check(slot)
        if time.monotonic() - begin_s > limit_s:
            raise TimeoutError(f"it did not answer within {limit_s:.0f} s")
    return ray.get(reference)


def _nodes() -> list[dict[str, Any]]:
    nodes: Any = ray.nodes
    found: list[dict[str, Any]] = nodes()
    return found


def _is_alive(slot: Slot) -> bool:
    """Whether there is a node for another worker."""
    try:
        return any(node["Alive"] and node["NodeID"] == slot.node_id for node in _nodes())
    except Exception:  # noqa: BLE001 - the connection is gone
        return False


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main(address: str) -> None:
    """Serve over the socket that the process has as stdin."""
    die_with_parent()
    connection = Connection(os.dup(0))
    try:
        gateway = Gateway(address, connection)
    except Exception as error:  # noqa: BLE001 - whatever Ray raises, the user is told
        connection.send(Refused(_line(error)))
        return
    gateway.serve()


if __name__ == "__main__":
    main(sys.argv[1])

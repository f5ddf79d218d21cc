"""Workers on the nodes of a Ray cluster, one for each processor."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hsdag import __version__
from hsdag.ir.errors import DeviceError, ExecutionError
from hsdag.workers.pool import Exchange, Findings, Host, HostLost, Job, JobLost

A = TypeVar("A")

EXCHANGE_S, PATIENCE_S = 0.25, 5.0
"""How often findings are exchanged, and how long a job may take to end once nobody needs it."""
START_LIMIT_S = 120.0
"""Within which a worker has to start."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "5",  # seconds for which calls wait where the connection is lost
}


class RemoteWorker:
    """An actor: one thread computes jobs, one after another, and another one exchanges findings."""

    def __init__(self) -> None:
        self._known = self._own = Findings()

    def version(self) -> str:
        """Of hsdag on this node."""
        return __version__

    def compute(self, job: Job[A]) -> tuple[A, Findings]:
        """What a job answers, and what it has found."""
        self._known = self._own = Findings()
        try:
            return job.run(self._exchange), self._own
        except MemoryError as error:
            raise ExecutionError(f"the memory of the node does not suffice for {type(job).__name__}") from error

    def swap(self, known: Findings) -> Findings:
        """Take over what all have found; what the present job has."""
        self._known = known
        return self._own

    def _exchange(self, own: Findings) -> Findings:
        self._own = own
        return self._known.joined(own)


class RayHost(Host):
    """One processor of a node; it is gone when its node is, starts no worker, or has another hsdag."""

    def __init__(self, node_id: str, host_name: str) -> None:
        self.name, self._node_id = f"{host_name} ({node_id[:6]})", node_id
        self._actor: Any = None

    def call(self, job: Job[A], exchange: Exchange, is_over: Callable[[], bool]) -> A:
        """As Host says."""
        try:
            if self._actor is None:
                self._start()
            return self._answer(job, exchange, is_over)
        except RayTaskError as error:
            raise error.cause from error
        except (ConnectionError, RayError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                self.close()
            self._actor = None
            is_gone = isinstance(error, ConnectionError) or self._node_id not in _nodes()
            raise (HostLost if is_gone else JobLost)(_line(error)) from error

    def _start(self) -> None:
        """Start a worker on the node. Raises HostLost where one of another hsdag starts."""
        strategy = NodeAffinitySchedulingStrategy(self._node_id, soft=False)
        worker: Any = ray.remote(RemoteWorker)
        self._actor = worker.options(num_cpus=1, max_concurrency=2, scheduling_strategy=strategy).remote()
        version = ray.get(self._actor.version.remote(), timeout=START_LIMIT_S)
        if version != __version__:
            raise HostLost(f"it has hsdag {version}, this machine has {__version__}")

    def _answer(self, job: Job[A], exchange: Exchange, is_over: Callable[[], bool]) -> A:
        """What a job answers. Raises what Ray does when its worker is lost, TimeoutError when that does not end."""
        reference, over_s = self._actor.compute.remote(job), float("inf")
        while not ray.wait([reference], timeout=EXCHANGE_S)[0]:
            over_s = min(over_s, time.monotonic()) if is_over() else over_s
            if time.monotonic() - over_s > PATIENCE_S:
                raise TimeoutError("it did not end when it should")
            known = exchange(Findings()).joined(Findings(is_over=is_over()))
            swapped = self._actor.swap.remote(known)
            if ray.wait([swapped], timeout=EXCHANGE_S)[0]:  # a busy worker exchanges findings later
                exchange(ray.get(swapped))
        answer: A
        answer, found = ray.get(reference)
        exchange(found)
        return answer

    def close(self) -> None:
        """End the worker."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(Exception):  # of a cluster that is gone
                ray.kill(actor)


def connect(address: str) -> list[Host]:
    """A host for each processor of a cluster. Raises DeviceError where there is none.

    A process has one connection, which ``disconnect`` ends.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    handler, reason = signal.getsignal(signal.SIGTERM), "it has no processors"
    hosts: list[Host] = []
    try:
        for attempts_left in (2, 1, 0):
            try:
                ray.init(address=address, namespace="hsdag", log_to_driver=False, logging_level=logging.ERROR)
                break
            except ConnectionAbortedError:  # servers for clients that start at once may choose the same port
                disconnect()
                if not attempts_left:
                    raise
        for node_id, node in _nodes().items():
            num_processors = int(node["Resources"].get("CPU", 0))
            hosts += [RayHost(node_id, node["NodeManagerHostname"]) for _ in range(num_processors)]
    except Exception as error:  # noqa: BLE001 - whatever Ray raises, the user is told
        reason = _line(error)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # which Ray takes for itself
    if not hosts:
        disconnect()
        raise DeviceError(
            f"no Ray cluster to work on: {reason}; "
            "start one with `ray start --head`, or name its address in --workers ray://HOST:PORT"
        )
    return hosts


def disconnect() -> None:
    """End the connection, and with it the workers."""
    with contextlib.suppress(Exception):  # of a cluster that is gone
        ray.shutdown()


def _nodes() -> dict[str, dict[str, Any]]:
    nodes: Any = ray.nodes
    with contextlib.suppress(Exception):
        return {node["NodeID"]: node for node in nodes() if node["Alive"]}
    return {}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

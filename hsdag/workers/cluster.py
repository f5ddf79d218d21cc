"""Run workers on the nodes of a Ray cluster, one for each processor."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from grpc import RpcError  # type: ignore[import-untyped]
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hsdag.base.errors import FLAGS_VARIABLE, DeviceError, ExecutionError, option
from hsdag.base.version import __version__
from hsdag.workers.pool import NOTHING, A, Exchange, Findings, Host, HostLost, Job, JobLost

EXCHANGE_S, PATIENCE_S = 0.25, 5.0
"""Seconds between exchanges of findings, and seconds that a job may take to end once its answer is not needed."""
START_LIMIT_S = 120.0
"""Give up on a worker that has not started after this many seconds."""
HOME = Path(__file__).parents[2]
"""Folder that contains this hsdag; Ray's workers look for modules in the folder that is current when Ray starts."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "5",  # seconds that calls wait after the connection is lost
}
INHERITED = (FLAGS_VARIABLE,)
"""Environment variables that workers take over, as processes on this machine do by themselves."""


class RemoteWorker:
    """Ray actor with two threads: one computes jobs in turn, the other exchanges findings.

    ``environment`` has variables of the process whose jobs it computes.
    """

    _of_all = _of_job = NOTHING

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)

    def version(self) -> str:
        """Return the version of hsdag on this node."""
        return __version__

    def compute(self, job: Job[A]) -> tuple[A, Findings]:
        """Compute a job; return its answer and its findings."""
        self._of_all = self._of_job = NOTHING
        return job.run(self._exchange), self._of_job

    def swap(self, findings: Findings) -> Findings:
        """Take over the findings of all jobs; return those of the present job."""
        self._of_all = findings
        return self._of_job

    def _exchange(self, findings: Findings) -> Findings:
        self._of_job = findings
        return self._of_all.joined(findings)


class RayHost(Host):
    """One processor of a node; it is lost if the node is gone, starts no worker, or has another version of hsdag."""

    def __init__(self, node_id: str, host_name: str) -> None:
        self.name = f"{host_name} ({node_id[:6]})"
        self._node_id = node_id
        self._actor: Any = None

    def call(self, job: Job[A], exchange: Exchange, is_over: Callable[[], bool]) -> A:
        """Compute a job; see ``Host.call``."""
        try:
            return self._answer(job, exchange, is_over)
        except RayTaskError as error:
            if isinstance(error.cause, MemoryError):
                raise ExecutionError(f"the memory of {self.name} does not suffice: {_line(error.cause)}") from error
            raise error.cause from error
        except (ConnectionError, RayError, RpcError, TimeoutError) as error:
            self.close()
            raise (JobLost if self._node_id in _nodes() else HostLost)(_line(error)) from error

    def _answer(self, job: Job[A], exchange: Exchange, is_over: Callable[[], bool]) -> A:
        """Return a job's answer. Raises Ray's errors for a lost worker, TimeoutError if an abandoned job goes on."""
        if self._actor is None:
            node = NodeAffinitySchedulingStrategy(self._node_id, soft=False)
            worker = ray.remote(RemoteWorker).options(num_cpus=1, max_concurrency=2, scheduling_strategy=node)
            self._actor = worker.remote({name: os.environ[name] for name in INHERITED if name in os.environ})
            version = ray.get(self._actor.version.remote(), timeout=START_LIMIT_S)
            if version != __version__:
                raise HostLost(f"it has hsdag {version}, this machine has {__version__}")
        reference = self._actor.compute.remote(job)
        over_s = float("inf")
        while not ray.wait([reference], timeout=EXCHANGE_S)[0]:
            over_s = min(over_s, time.monotonic()) if is_over() else over_s
            if time.monotonic() - over_s > PATIENCE_S:
                raise TimeoutError("it did not end when it should")
            swapped = self._actor.swap.remote(exchange(NOTHING).joined(Findings(is_over=is_over())))
            if ray.wait([swapped], timeout=EXCHANGE_S)[0]:  # a busy worker exchanges findings later
                exchange(ray.get(swapped))
        answered: tuple[A, Findings] = ray.get(reference)
        exchange(answered[1])
        return answered[0]

    def close(self) -> None:
        """End the worker."""
        actor, self._actor = self._actor, None
        if actor is not None and ray.is_initialized():  # otherwise Ray would start a cluster here
            with contextlib.suppress(Exception):  # the cluster may be gone
                ray.kill(actor)


def connect(address: str) -> list[Host]:
    """Return a host for each processor of a cluster, for use until ``disconnect``. Raises DeviceError for none."""
    os.environ.update(ENVIRONMENT | os.environ)
    handler = signal.getsignal(signal.SIGTERM)
    reason = "it has no processors"
    for _ in range(3):
        try:
            with contextlib.chdir(HOME):
                ray.init(address=address, namespace="hsdag", log_to_driver=False, logging_level=logging.ERROR)
            break
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the user is told
            reason = _line(error)
            disconnect()
            if not isinstance(error, ConnectionAbortedError):  # Ray may give two clients the same port; retry
                break
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        signal.signal(signal.SIGTERM, handler)  # Ray installs a handler of its own
    hosts: list[Host] = [
        RayHost(node_id, node["NodeManagerHostname"])
        for node_id, node in _nodes().items()
        for _ in range(int(node["Resources"].get("CPU", 0)))
    ]
    if not hosts:
        disconnect()
        raise DeviceError(
            f"no Ray cluster to work on: {reason}; "
            f"start one with `ray start --head`, or name its address in {option('workers')} ray://HOST:PORT"
        )
    return hosts


def disconnect() -> None:
    """Close the connection, which ends the workers."""
    with contextlib.suppress(Exception):  # the cluster may be gone
        ray.shutdown()


def _nodes() -> dict[str, dict[str, Any]]:
    """Return the nodes that are alive by their ids; empty if the cluster cannot be asked."""
    with contextlib.suppress(Exception):
        return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
    return {}


def _line(error: Exception) -> str:
    """Format an error on one line of limited length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

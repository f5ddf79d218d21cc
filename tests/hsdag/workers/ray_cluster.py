"""A Ray cluster of nodes of one processor on this machine, in a process of its own, whose nodes can be killed."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from hsdag.workers.option import pool_of
from hsdag.workers.pool import Pool

ROOT, STORE_BYTES = Path(__file__).parents[3], 80 << 20
ONE_AT_A_TIME = FileLock(Path(tempfile.gettempdir()) / f"hsdag-ray-{getpass.getuser()}.lock")
"""Two clusters of one machine to which clients connect at once give them the same port."""


@contextlib.contextmanager
def ray_cluster(num_nodes: int = 3, modules: Path | None = None) -> Iterator[tuple[str, Callable[[int], None]]]:
    """The address for machines outside, and what kills a node; 0 is the head. ``modules`` are on the nodes alone."""
    command = [sys.executable, "-m", "tests.hsdag.workers.ray_cluster", str(num_nodes)]
    paths = os.pathsep.join([*map(str, filter(None, [modules, ROOT])), os.environ.get("PYTHONPATH", "")])
    given = os.environ | {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=given, text=True, stdin=pipe, stdout=pipe, stderr=nothing) as process:
        said, told = process.stdin, process.stdout
        assert said is not None
        assert told is not None

        def kill(node: int) -> None:
            print(node, file=said, flush=True)
            assert told.readline() == "killed\n"

        address = told.readline().strip()
        assert address, "the cluster did not start"
        yield address, kill
        said.close()
        process.wait(60)


@contextlib.contextmanager
def workers_of(address: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Pool]:
    with contextlib.ExitStack() as stack:
        with ONE_AT_A_TIME:
            pool = stack.enter_context(pool_of(address, say))
        assert pool is not None
        yield pool


def main() -> None:
    """Print the address of Ray's client; then kill the nodes of the numbers that come, until the input ends."""
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(int(sys.argv[1]) - 1):
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    nodes = [cluster.head_node, *cluster.worker_nodes]
    with socket.socket() as knocking:
        while knocking.connect_ex(("127.0.0.1", port)):  # Ray's client server comes after the node
            time.sleep(0.1)
    os.write(1, f"ray://127.0.0.1:{port}\n".encode())
    for line in sys.stdin:
        nodes[int(line)].kill_all_processes(check_alive=False, allow_graceful=False)
        os.write(1, b"killed\n")
    cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

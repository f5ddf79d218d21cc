"""A Ray cluster of nodes on this machine, which are killed by number, as the lines of its input say."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20


def main() -> None:
    """Print the address, and that of Ray's client; then kill nodes until the input ends. Node 0 is the head."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(int(sys.argv[1]) - 1):
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    nodes = [cluster.head_node, *cluster.worker_nodes]
    _tell(cluster.address)
    while not _listens(port):  # Ray's client server comes after the node
        time.sleep(0.1)
    _tell(f"ray://127.0.0.1:{port}")
    for line in sys.stdin:
        nodes[int(line)].kill_all_processes(check_alive=False, allow_graceful=False)
        _tell("killed")
    shutdown: Callable[[], None] = cluster.shutdown
    shutdown()


def _listens(port: int) -> bool:
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main()

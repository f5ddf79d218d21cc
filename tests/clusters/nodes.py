"""A Ray cluster of nodes on this machine, which are killed by number, as the lines of its input say."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20


def main() -> None:
    """Print the address; then kill nodes until the input ends. Node 0 is the head."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES})
    for _ in range(int(sys.argv[1]) - 1):
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    nodes = [cluster.head_node, *cluster.worker_nodes]
    _tell(cluster.address)
    for line in sys.stdin:
        nodes[int(line)].kill_all_processes(check_alive=False, allow_graceful=False)
        _tell("killed")
    shutdown: Callable[[], None] = cluster.shutdown
    shutdown()


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main()

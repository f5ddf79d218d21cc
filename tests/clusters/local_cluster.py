"""A Ray cluster of nodes on this machine, in a process of its own, whose nodes can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, cast

COMMAND = (sys.executable, "-m", "tests.clusters.nodes")


class LocalCluster:
    """``num_nodes`` nodes of one processor each; the first is the head. Use as a context manager, which ends them.

    ``client_address`` is what a machine outside the cluster connects to, ray://HOST:PORT. Modules in the folder
    ``modules`` are there on the nodes alone.
    """

    def __init__(self, num_nodes: int = 3, modules: Path | None = None) -> None:
        root = Path(__file__).parents[2]
        paths = os.pathsep.join([*map(str, filter(None, [modules, root])), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [*COMMAND, str(num_nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=root,
            env=os.environ | {"PYTHONPATH": paths},  # where jobs of tests are found, by machines outside too
        )
        self.address, self.client_address = self._line(), self._line()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        cast("IO[str]", self._process.stdin).close()
        self._process.wait(60)
        cast("IO[str]", self._process.stdout).close()

    def kill(self, node: int) -> None:
        """Kill all processes of a node, without a warning."""
        stdin = cast("IO[str]", self._process.stdin)
        stdin.write(f"{node}\n")
        stdin.flush()
        assert self._line() == "killed"

    def _line(self) -> str:
        line = cast("IO[str]", self._process.stdout).readline().strip()
        assert line, "the cluster did not start"
        return line

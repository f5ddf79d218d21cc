"""Measuring processes of tests, forked from one that has imported OpenVINO: importing takes longer than most of them.

They run the same module as the command would, in an own session, and end with the process that asked for them.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from hsdag.base.host import die_with_parent, start_process
from hsdag.base.processes import process_command

MODULES = ("hsdag.runtime.measuring.worker", "hsdag.ir.graph.reader_process")
COMMANDS = {process_command(module): module for module in MODULES}
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([*MODULES])


class Forked(FORKING.Process):  # type: ignore[misc, name-defined]
    """What a client needs of ``subprocess.Popen``."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return int(self.exitcode)


def start(command: Sequence[str], log: IO[bytes]) -> tuple[Any, Connection]:
    """As ``start_process`` does, which starts other commands than those of MODULES."""
    if tuple(command) not in COMMANDS:
        return start_process(command, log)
    ours, theirs = FORKING.Pipe()
    told, tells = FORKING.Pipe(duplex=False)
    with theirs, tells, Connection(os.dup(log.fileno()), readable=False) as printed:
        given = (COMMANDS[tuple(command)], theirs, printed, tells, str(Path.cwd()), dict(os.environ))
        forked = Forked(target=work, args=given, daemon=True)
        forked.start()
    with told:
        told.poll(None)  # it has a session of its own, which somebody may end
    return forked, ours


def work(
    module: str, parent: Connection, log: Connection, tells: Connection, folder: str, environment: Mapping[str, str]
) -> None:
    """Run a module as a command does."""
    die_with_parent()
    os.setsid()
    tells.close()
    for connection, own in ((parent, 0), (log, 1), (log, 2)):
        os.dup2(connection.fileno(), own)
    parent.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module]
    del sys.modules[module]  # which runs anew, under the name that a command's module has
    runpy.run_module(module, run_name="__main__", alter_sys=True)

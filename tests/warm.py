"""Measuring processes of tests, forked from one that has imported OpenVINO: importing takes longer than most of them.

They run the same module as the command would, in an own session, and end with the process that asked for them.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from hsdag.ir.host import die_with_parent, start_process
from hsdag.ir.processes import process_command

MODULES = ("hsdag.runtime.measuring.worker", "hsdag.ir.graph.model_guard")
COMMANDS = {process_command(module): module for module in MODULES}
ROOT = Path(__file__).parents[1]


class Forked:
    """What a client needs of ``subprocess.Popen``; ``told`` says the process id in a line, and later the exit code."""

    def __init__(self, told: int) -> None:
        self._told = os.fdopen(told, "rb", buffering=0)
        self.returncode: int | None = None
        self.pid = int(self._told.readline())

    def __del__(self) -> None:
        self._told.close()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._told.readline() or -signal.SIGKILL)
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def kill(self) -> None:
        """End the process."""
        os.kill(self.pid, signal.SIGKILL)


class Zygote:
    """The process that the others are forked from, which is started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._link, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self, command: Sequence[str], log: IO[bytes]) -> tuple[Any, Connection]:
        """As ``start_process`` does, which starts other commands than those of MODULES."""
        if tuple(command) not in COMMANDS:
            return start_process(command, log)
        if self._process is None:
            fd = self._theirs.fileno()
            program = [sys.executable, "-m", __name__, str(fd)]
            self._process = subprocess.Popen(program, cwd=ROOT, pass_fds=[fd], start_new_session=True)
        told, tells = os.pipe()
        request = json.dumps([COMMANDS[tuple(command)], str(Path.cwd()), dict(os.environ)]).encode(
            errors="surrogateescape"
        )
        ours, theirs = Pipe()
        with theirs:
            socket.send_fds(self._link, [request], [theirs.fileno(), log.fileno(), tells])
        os.close(tells)
        return Forked(told), ours

    def close(self) -> None:
        """End it, and with it all others."""
        self._link.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()


def forked(link: socket.socket) -> str:
    """Fork as often as asked; in a process that is to run a module, its name."""
    while True:
        request, fds, *_ = socket.recv_fds(link, 1 << 20, 3)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # it waited for a worker that has ended
        if not request:
            sys.exit()
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    link.close()
    die_with_parent()
    stdin, log, tells = fds
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):  # nobody asks any more
            os.write(tells, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.setsid()  # before anybody could end its session
    os.write(tells, f"{os.getpid()}\n".encode())
    for fd, own in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(fd, own)
    for fd in fds:
        os.close(fd)
    module, folder, environment = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return str(module)


if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    asked = forked(socket.socket(fileno=int(sys.argv[1])))
    del sys.modules[asked]  # which runs anew, under the name that a command's module has
    runpy.run_module(asked, run_name="__main__", alter_sys=True)

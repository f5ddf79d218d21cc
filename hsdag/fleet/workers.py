"""Workers by what a user asks for: processes of this machine, or a cluster."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

from hsdag.fleet.pool import LocalHost, Pool
from hsdag.ir.errors import DeviceError, OptionError
from hsdag.runtime.platforms.usable import usable_cpus

CHOICES = "local:N, ray or ray://HOST:PORT"
MOST_LOCAL = 1024
KNOCK_LIMIT_S = 10.0


def make_pool(workers: str, say: Callable[[str], None] = lambda _: None) -> Pool:
    """The workers of ``local:N`` (``local`` for one on each processor), of the cluster that this machine belongs to
    (``ray``), or of another one by its address.

    Raises OptionError for what is none of these and where Ray is not installed, DeviceError where no cluster answers.
    """
    check_workers(workers)
    if workers.startswith("local"):
        count = int(workers.removeprefix("local:")) if ":" in workers else usable_cpus()
        return Pool([LocalHost() for _ in range(count)], say)
    if workers != "ray":
        _knock(workers)
    from hsdag.fleet.cluster import connect, disconnect  # which needs Ray

    return Pool(connect("auto" if workers == "ray" else workers), say, disconnect)


def _knock(address: str) -> None:
    """Raise DeviceError where nothing listens, which Ray itself finds out after half a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), KNOCK_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise DeviceError(
            f"no Ray cluster answers at {address} ({error}); `ray start --head` on {host} opens port 10001 for it"
        ) from None


def pool_of(workers: str | None, say: Callable[[str], None] = lambda _: None) -> AbstractContextManager[Pool | None]:
    """``make_pool`` where workers are asked for, for a with statement."""
    return nullcontext() if workers is None else make_pool(workers, say)


def check_workers(workers: str) -> None:
    """Raise OptionError for what names no workers, or none that are installed."""
    local = re.fullmatch(r"local(:[0-9]{1,9})?", workers)
    if local is None and workers != "ray" and re.fullmatch(r"ray://[^/\s]+:[0-9]{1,9}", workers) is None:
        raise OptionError(f"--workers {workers!r} is none of {CHOICES}")
    if local is not None and local[1] is not None and not 1 <= int(local[1][1:]) <= MOST_LOCAL:
        raise OptionError(f"--workers local:N takes 1 to {MOST_LOCAL} workers, not {local[1][1:]}")
    if local is None and find_spec("ray") is None:
        raise OptionError("--workers ray needs Ray: pip install hsdag[ray]")

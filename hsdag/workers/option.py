"""The option ``--workers``: what it may say, and a pool of the workers that it describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

from hsdag.base.errors import OptionError, install_extra, option
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.workers.pool import LocalHost, Pool


def pool_of(workers: str | None, say: Callable[[str], None] = lambda _: None) -> AbstractContextManager[Pool | None]:
    """Return a pool of the workers that the text describes, or None for None. Raises DeviceError if no cluster answers.

    ``local:N`` stands for N processes on this machine, ``local`` for one per processor, ``ray`` for the cluster that
    this machine belongs to, and ``ray://HOST:PORT`` for another cluster.
    """
    if workers is None:
        return nullcontext()
    if workers.startswith("local"):
        count = int(workers.removeprefix("local:")) if ":" in workers else usable_cpus()
        return Pool([LocalHost() for _ in range(count)], say)
    from hsdag.workers.cluster import connect, disconnect  # imported here because it needs Ray

    return Pool(connect("auto" if workers == "ray" else workers), say, disconnect)


def check_workers(workers: str) -> None:
    """Raise OptionError if the text does not describe workers, or if they need a package that is not installed."""
    if re.fullmatch(r"local(:[1-9][0-9]{0,2})?|ray(://[^/\s]+:[0-9]{1,9})?", workers) is None:
        raise OptionError(
            f"{option('workers')} {workers[:99]!r} is none of local:N with N up to 999, ray or ray://HOST:PORT"
        )
    if workers.startswith("ray") and find_spec("ray") is None:
        raise OptionError(f"{option('workers')} ray needs Ray; {install_extra('ray')}")

"""The measuring process on another machine: it gets the model's files with its first request, and keeps none."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hsdag.boxes.site import Packed
from hsdag.ir.processes import Channel, main
from hsdag.runtime.measuring.worker import Worker


def make_worker(packed: Packed, channel: Channel) -> Worker:
    """The worker, once it has read the model. The files are gone then: what is killed cannot leave any behind."""
    with tempfile.TemporaryDirectory(prefix="hsdag-") as folder:
        return Worker(packed.unpacked(Path(folder)), channel.tell)


if __name__ == "__main__":
    main(make_worker)

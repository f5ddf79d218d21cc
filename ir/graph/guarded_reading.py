"""The process of ``ModelGuard``: reads one model after another, to be killed where one does harm."""

from __future__ import annotations

import math
import os
import resource
import signal
from multiprocessing.connection import Connection

from hsdag.ir.errors import ModelError
from hsdag.ir.graph.model_guard import IDLE_S, ReadModel
from hsdag.ir.graph.reader import load_model
from hsdag.ir.processes import serve

LEAST_BYTES, BYTES_PER_BYTE = 800_000_000, 6
"""Memory for reading a model: this much, and so many times the size of the files in its folder."""

GRACE_S = 2
"""Beyond the limit of time, after which the process ends by itself: whoever should have killed it is gone."""


class Reader:
    """Reads models within limits of memory and time."""

    def handle(self, request: ReadModel) -> None:
        """Read one. Raises ModelError, and for shapes what ``load_model`` raises."""
        limit = LEAST_BYTES + BYTES_PER_BYTE * request.beside_bytes
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
        os.environ.update(request.environment)
        signal.alarm(math.ceil(request.limit_s) + GRACE_S)
        try:
            load_model(request.path, request.shapes, spare=request.spare, dynamic=True, guarded=False)
        except MemoryError as error:
            takes = f"it takes more than {limit / 1e6:.0f} MB of memory"
            raise ModelError(f"{request.path} is not a model that OpenVINO can read: {takes}") from error
        finally:
            signal.alarm(0)


if __name__ == "__main__":
    serve(lambda *_: Reader(), Connection(os.dup(0)), IDLE_S)

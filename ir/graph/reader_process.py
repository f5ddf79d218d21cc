"""The process that reads models for ``ModelGuard``, within limits of memory and time."""

from __future__ import annotations

import math
import os

from hsdag.base.errors import ModelError
from hsdag.base.host import connection_to_parent, deadline, limit_memory
from hsdag.base.processes import serve
from hsdag.ir.graph.model_guard import IDLE_S, ReadModel
from hsdag.ir.graph.reader import load_model

LEAST_BYTES, BYTES_PER_BYTE = 800_000_000, 6
"""Limit on the memory to read a model: the first, in bytes, plus the second times the size of the files beside it."""

GRACE_S = 1
"""Seconds beyond the time limit after which the process ends itself, as its parent did not."""


class Reader:
    """The server in the reader process, which reads models within limits of memory and time."""

    def handle(self, request: ReadModel) -> None:
        """Read one model. Raises ModelError, and for shapes what ``load_model`` raises."""
        limit = limit_memory(LEAST_BYTES + BYTES_PER_BYTE * request.beside_bytes)
        os.environ.update(request.environment)
        try:
            with deadline(math.ceil(request.limit_s) + GRACE_S):
                load_model(request.path, request.shapes, spare=request.spare, dynamic=True, guarded=False)
        except MemoryError as error:
            takes = f"it takes more than {limit / 1e6:.0f} MB of memory"
            raise ModelError(f"{request.path} is not a model that OpenVINO can read: {takes}") from error


if __name__ == "__main__":
    serve(lambda *_: Reader(), connection_to_parent(), IDLE_S)

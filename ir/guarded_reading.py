"""The process of ``ModelGuard``: reads one model after another, to be killed where one does harm."""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any

from hsdag.ir.errors import HsdagError
from hsdag.ir.model_guard import IDLE_S, READY
from hsdag.ir.reader import load_model

LEAST_BYTES, BYTES_PER_BYTE = 800_000_000, 6
"""Memory for reading a model: this much, and so many times the size of the files in its folder."""

GRACE_S = 2
"""Beyond the limit of time, after which the process ends by itself: whoever should have killed it is gone."""


def main() -> None:
    """Read the models that stdin names, one JSON object a line, until there is none for a while."""
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries may print
    _write(answers, READY)
    while select.select([0], [], [], IDLE_S)[0]:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        _write(answers, _refusal(json.loads(line)))


def _write(answers: int, text: str) -> None:
    os.write(answers, json.dumps(text).encode() + b"\n")


def _refusal(request: dict[str, Any]) -> str:
    """Why a model is refused, empty where it is not."""
    limit = LEAST_BYTES + BYTES_PER_BYTE * request["size_bytes"]
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    os.environ.update(request["environment"])
    signal.alarm(math.ceil(request["limit_s"]) + GRACE_S)
    shapes, spare = ({name: tuple(sizes) for name, sizes in request[key].items()} for key in ("shapes", "spare"))
    path = Path(request["path"])
    try:
        load_model(path, shapes, spare=spare, dynamic=True, guarded=False)
    except HsdagError as error:
        return str(error)
    except MemoryError:
        return f"{path} is not a model that OpenVINO can read: it takes more than {limit / 1e6:.0f} MB of memory"
    finally:
        signal.alarm(0)
    return ""


if __name__ == "__main__":
    main()

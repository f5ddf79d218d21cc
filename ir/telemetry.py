"""Converting models without telling anyone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_telemetry() -> Iterator[None]:
    """Conversion reports to OpenVINO's makers unless it runs in CI, which is all a process can say to stop it."""
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before

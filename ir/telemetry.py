"""Converting models without telling anyone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_conversion() -> Iterator[None]:
    """Convert without a report to OpenVINO's makers, and without a warning that no user can act on.

    A process can only say that it runs in CI to stop the report. The converter uses torch.jit, which is deprecated.
    """
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before

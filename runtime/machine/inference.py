"""Inference: running a request of OpenVINO's whose tensors are bound, and knowing when it failed.

Where the CPU plugin has one thread per inference it swallows what goes wrong in the caller's thread (2026.4.1), and
HETERO then goes on with the next submodel, so that every output is written. A thread of the plugin tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import openvino as ov

from hsdag.ir.errors import ExecutionError, HsdagError


def infer_unchecked(request: Any) -> None:
    """Run in the calling thread, which is quickest. It may have failed where nothing is raised."""
    request.infer(share_outputs=True, decode_strings=False)


def infer_checked(request: Any) -> None:
    """Run in a thread of the plugin. Raises RuntimeError when the inference failed."""
    request.start_async()
    request.wait()


def array_of(tensor: ov.Tensor) -> np.ndarray[Any, Any]:
    """A copy of what a tensor holds; strings as text."""
    return np.array(tensor.str_data if tensor.element_type == ov.Type.string else tensor.data)


@contextmanager
def device_calls() -> Iterator[None]:
    """Around calls of OpenVINO: what it raises, of whatever type, becomes ExecutionError with its reason.

    Errors that only a defect of ours raises pass as they are.
    """
    try:
        yield
    except (HsdagError, AttributeError, NameError, AssertionError):
        raise
    except Exception as error:
        raise ExecutionError(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """What an error of OpenVINO's says, without the source files it went through and the stack of a Python op."""
    kept: list[str] = []
    for line in (line.strip() for line in str(error).splitlines()):
        if line == "At:":
            break
        if line and not line.startswith(("Exception from", "Caught exception: Exception from")):
            kept.append(line)
    return ": ".join(kept) or type(error).__name__

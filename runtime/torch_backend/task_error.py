"""The error of a failed task: one line, and one name for out of memory, whichever allocator reported it."""

from __future__ import annotations

import traceback

import torch

from hsdag.runtime.torch_backend.memory import DeviceMemoryError


def task_error(error: BaseException) -> BaseException:
    """The error to report for a task that raised ``error``; no tensor stays alive through it."""
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__.tb_next)
    text = str(error).strip()
    line = text.splitlines()[0] if text else repr(error)
    if isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text:
        return _because(error, DeviceMemoryError(f"out of memory: {line}"))
    return error if line == text else _because(error, RuntimeError(line))


def _because(cause: BaseException, told: BaseException) -> BaseException:
    told.__cause__ = cause
    return told

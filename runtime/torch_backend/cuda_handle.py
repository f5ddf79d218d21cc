"""CUDA streams and events, typed: torch leaves their constructors without types."""

from __future__ import annotations

import torch

CAPTURE_PRIORITY = -1
"""That of the streams that torch keeps apart from those of the usual priority, 0."""


def new_stream(gpu: torch.device) -> torch.cuda.Stream:
    """A stream on a GPU, one of the 32 that torch hands out in turn: of more than that, some are the same."""
    return torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]


def new_capture_stream(gpu: torch.device) -> torch.cuda.Stream:
    """A stream to capture on, of 32 others that torch hands out in turn: ``new_stream`` never gives one of them."""
    return torch.cuda.Stream(gpu, priority=CAPTURE_PRIORITY)  # type: ignore[no-untyped-call]


def new_event() -> torch.cuda.Event:
    """An event without times."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def has_passed(event: torch.cuda.Event) -> bool:
    """Whether all that was enqueued before an event was recorded has ended. Raises RuntimeError where it failed."""
    return bool(event.query())  # type: ignore[no-untyped-call]

"""Throughput: seconds per inference while several requests are in flight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any


def steady_period_s(requests: Sequence[Any], inferences: int) -> float:
    """Seconds per inference of ``inferences`` with all requests in flight.

    Each request is started again as soon as its turn comes. The first inference of each, which finds devices idle,
    does not count; nor do those that are in flight when the last one counted has ended.
    """
    count = len(requests)
    begin_s = end_s = 0.0
    for request in requests:
        request.start_async()
    for k in range(count + inferences):
        requests[k % count].wait()
        end_s = time.perf_counter()
        if k == count - 1:
            begin_s = end_s
        requests[k % count].start_async()
    for request in requests:
        request.wait()
    return (end_s - begin_s) / inferences

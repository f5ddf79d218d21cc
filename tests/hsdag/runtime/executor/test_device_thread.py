"""DeviceThread: jobs in order, one thread, and the next job from within a job without a change of thread."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

from hsdag.runtime.executor.openvino_backend import DeviceThread

PATIENCE_S = 30.0


def test_a_job_that_gives_the_next_goes_on_in_its_thread() -> None:
    thread, idents, done = DeviceThread("d"), list[int](), threading.Event()

    def job(left: int) -> None:
        idents.append(threading.get_ident())
        if left:
            thread.give(lambda: job(left - 1))
        else:
            done.set()

    thread.give(lambda: job(1000))
    assert done.wait(PATIENCE_S)
    thread.end()
    thread.join(PATIENCE_S)
    assert len(idents) == 1001
    assert len(set(idents)) == 1


def test_what_a_job_held_is_freed_when_it_is_done() -> None:
    class Held:
        """Something."""

    thread, held, done = DeviceThread("d"), Held(), threading.Event()
    freed = weakref.ref(held)
    thread.give(partial(gc.is_tracked, held))  # type: ignore[arg-type]
    thread.give(done.set)
    del held
    assert done.wait(PATIENCE_S)
    gc.collect()
    assert freed() is None
    thread.end()
    thread.join(PATIENCE_S)

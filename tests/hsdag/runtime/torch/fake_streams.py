"""GPUs that stand in for real ones: streams whose threads run what was enqueued, in order, on tensors of the CPU.

A kernel's result exists when it is enqueued, and holds NaN until the kernel has run. When nobody holds it any more, it
is filled with NaN behind what its stream has been given, as the allocator would give it to another task of that stream.
So who reads too early or, on another stream, too late reads NaN.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import pytest
import torch

from hsdag.runtime.torch import lanes, program
from hsdag.runtime.torch.devices import LogicalDevice
from hsdag.runtime.torch.op import TensorFunction
from tests.hsdag.runtime.executor.hand_backend import await_until

Tensor = torch.Tensor
Function = Callable[[Sequence[Tensor]], Tensor]


class FakeGpus:
    """As many GPUs as asked for. ``log`` has what happened, ``("enqueue", name)`` and ``("run", name)``, in order.

    Kernels run one for each ``step``, and freely once they were ``opened``, each after ``latency``; the host sees the
    ends of events while ``notice`` is set.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.log: list[tuple[str, str]] = []
        self.latency: Callable[[], None] = lambda: None
        self.notice = threading.Event()
        self.notice.set()
        self.streams: list[FakeStream] = []
        self.alive: dict[str, weakref.ref[Tensor]] = {}  # the result of each kernel, by its name
        self.counts = dict.fromkeys(("set_stream", "query", "synchronize"), 0)
        self.failing: str | None = None  # the kernel after which events fail
        self._permits: float = 0
        self._changed = threading.Condition()
        self._here = threading.local()

    def opened(self) -> FakeGpus:
        """Let all kernels run."""
        return self.step(float("inf"))

    def step(self, count: float = 1) -> FakeGpus:
        """Let that many more kernels run."""
        with self._changed:
            self._permits += count
            self._changed.notify_all()
        return self

    def await_permit(self) -> None:
        """Wait until a kernel may run."""
        with self._changed:
            self._changed.wait_for(lambda: self._permits > 0)
            self._permits -= 1
        self.latency()

    def await_names(self, what: str, count: int) -> None:
        """Wait until so many kernels were enqueued, or have run."""
        await_until(lambda: len(self.names(what)) >= count)

    def names(self, what: str) -> list[str]:
        """Return the kernels that were enqueued, or have run, in order."""
        return [name for each, name in self.log if each == what]

    def set_stream(self, stream: FakeStream) -> None:
        """Make it the calling thread's on its GPU."""
        self.counts["set_stream"] += 1
        self._here.__dict__.setdefault("streams", {})[stream.device] = stream

    @contextmanager
    def stream(self, stream: FakeStream | None) -> Iterator[None]:
        """Make it the calling thread's for a while; nothing where there is none."""
        if stream is not None:
            before = self.current_stream(stream.device)
            self.set_stream(stream)
        yield
        if stream is not None:
            self.set_stream(before)

    def current_stream(self, device: torch.device) -> FakeStream:
        """Return the calling thread's, at first the default one."""
        streams: dict[torch.device, FakeStream] = self._here.__dict__.setdefault("streams", {})
        return streams.setdefault(device, FakeStream(self, device))

    def kernel(self, name: str, device: LogicalDevice, function: Function) -> TensorFunction:
        """Return an op that runs on a GPU, or at once on the CPU; its result has the shape of its first input."""

        def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            if not device.is_cuda:
                return (function(xs),)
            out = torch.full_like(xs[0], torch.nan)
            memory, reads = out.detach(), [x.detach() for x in xs]
            stream = self.current_stream(device.physical)
            weakref.finalize(out, stream.put, partial(memory.fill_, torch.nan)).atexit = False
            self.alive[name] = weakref.ref(out)
            stream.enqueue(name, lambda: memory.copy_(function(reads)))
            return (out,)

        return run

    def copy_between(self, source: LogicalDevice, destination: LogicalDevice) -> TensorFunction:
        """Return a copy, which the stream of the source carries out and that of the destination waits for."""
        if not (source.is_cuda and destination.is_cuda):
            return lambda xs: (xs[0].clone(),)
        kernel = self.kernel(f"{source.name}->{destination.name}", source, lambda xs: xs[0].clone())

        def run(xs: Sequence[Tensor]) -> Sequence[Tensor]:
            sent, arrived = kernel(xs), FakeEvent(self)
            arrived.record(self.current_stream(source.physical))
            self.current_stream(destination.physical).wait_event(arrived)
            return sent

        return run


class FakeStream:
    """A queue and the thread that runs it."""

    def __init__(self, gpus: FakeGpus, device: torch.device) -> None:
        self.gpus, self.device = gpus, device
        self.captured: list[Callable[[], object]] | None = None
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        gpus.streams.append(self)
        threading.Thread(target=self._main, name="fake-stream", daemon=True).start()

    def enqueue(self, name: str, work: Callable[[], object]) -> None:
        """Put a kernel behind what is there."""

        def run() -> None:
            self.gpus.await_permit()
            work()
            self.gpus.log.append(("run", name))

        self.gpus.log.append(("enqueue", name))
        self.put(run)

    def put(self, work: Callable[[], object] | None) -> None:
        """Put any work behind what is there, or end the thread."""
        if self.captured is None or work is None:
            self._queue.put(work)
        else:
            self.captured.append(work)

    def wait_event(self, event: FakeEvent) -> None:
        """Have the stream wait."""
        passed = event.passed
        self.put(passed.wait)

    def synchronize(self) -> None:
        """Have the host wait."""
        event = FakeEvent(self.gpus)
        event.record(self)
        event.passed.wait()

    def _main(self) -> None:
        for work in iter(self._queue.get, None):
            work()


class FakeGraph:
    """What was enqueued while it was captured, to be enqueued again."""

    def __init__(self) -> None:
        self.works: list[Callable[[], object]] = []

    @contextmanager
    def captured_on(self, stream: FakeStream) -> Iterator[None]:
        """Keep what is enqueued on a stream, and run nothing of it."""
        self.stream, stream.captured = stream, self.works
        yield
        stream.captured = None

    def replay(self) -> None:
        """Enqueue it."""
        for work in self.works:
            self.stream.put(work)


class FakeEvent:
    """Passes when its stream comes to it."""

    def __init__(self, gpus: FakeGpus) -> None:
        self.gpus = gpus
        self.passed = threading.Event()
        self.at_s = 0.0
        self.has_failed = False

    def record(self, stream: FakeStream) -> None:
        """Put it behind what is there."""
        self.passed = passed = threading.Event()

        def pass_by() -> None:
            self.at_s = time.perf_counter()
            self.has_failed = self.gpus.failing in self.gpus.names("run")
            passed.set()

        stream.put(pass_by)

    def synchronize(self) -> None:
        """Have the host wait until it sees it."""
        self.gpus.counts["synchronize"] += 1
        self.passed.wait()
        self.gpus.notice.wait()
        if self.has_failed:
            raise RuntimeError("an illegal access\nand more")

    def query(self) -> bool:
        """Return whether it has passed; counted."""
        self.gpus.counts["query"] += 1
        return self.passed.is_set()

    def elapsed_time(self, later: FakeEvent) -> float:
        """Return milliseconds between two."""
        return 1e3 * (later.at_s - self.at_s)


@contextmanager
def fake_gpus(monkeypatch: pytest.MonkeyPatch, count: int = 2) -> Iterator[FakeGpus]:
    """Stand in for torch's."""
    gpus = FakeGpus(count)

    def physical(device: LogicalDevice) -> torch.device:
        return torch.device("cpu", int(device.torch_device[5:])) if device.is_cuda else torch.device("cpu")

    monkeypatch.setattr(LogicalDevice, "physical", property(physical))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(gpus, device))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: FakeEvent(gpus))
    monkeypatch.setattr(torch.cuda, "set_stream", gpus.set_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", gpus.current_stream)
    monkeypatch.setattr(torch.cuda, "stream", gpus.stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream, **_: graph.captured_on(stream))
    monkeypatch.setattr(program, "copy_between", gpus.copy_between)
    lanes.streams_of.cache_clear()
    try:
        yield gpus
    finally:
        gpus.notice.set()
        gpus.opened()
        for stream in gpus.streams:
            stream.put(None)
        lanes.streams_of.cache_clear()

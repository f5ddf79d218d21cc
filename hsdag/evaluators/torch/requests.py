"""TorchRequest: a placed graph with inputs in place, called like a request of OpenVINO's."""

from __future__ import annotations

from hsdag.runtime.executor import Run
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.runtime.torch_backend import Inference, TorchExecutor
from hsdag.runtime.torch_backend.graph import Tensor


class TorchRequest:
    """One inference at a time; each fails after ``limit_s`` seconds with an ExecutionError that names op and device."""

    def __init__(self, executor: TorchExecutor, limit_s: float | None) -> None:
        self._executor, self._limit_s = executor, limit_s
        self._inference: Inference | None = None

    def infer(self, **_: object) -> None:
        """Run and wait. Options of OpenVINO's have no meaning here."""
        self.start_async()
        self.wait()

    def start_async(self) -> None:
        """Start an inference."""
        self._inference = self._executor.submit(limit_s=self._limit_s)

    def wait(self) -> dict[str, Tensor]:
        """The results by name, in the order of the graph's outputs. Raises ExecutionError where it ended badly."""
        assert self._inference is not None
        return self._inference.wait()

    @property
    def run(self) -> Run:
        """The times of the last inference."""
        assert self._inference is not None
        return self._inference.run

    @property
    def latency(self) -> float:
        """Seconds that it took."""
        return self.run.makespan_s

    @property
    def timeline(self) -> Timeline:
        """What ran where and when in it."""
        return self.run.timeline

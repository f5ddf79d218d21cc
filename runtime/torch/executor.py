"""Run the inferences of a placed graph on torch devices, scheduled work-conserving."""

from __future__ import annotations

import itertools

from hsdag.base.processes import Closing
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.executor.engine import GRACE_S, Engine
from hsdag.runtime.executor.tasks import Attempt, Backend, Inbox, Run
from hsdag.runtime.torch.buffers import Inputs, Residents, RunState
from hsdag.runtime.torch.lanes import Lane, StreamLane, WorkerLane
from hsdag.runtime.torch.op import Tensor
from hsdag.runtime.torch.program import Program


def make_lane(program: Program, number: int) -> Lane:
    """Return the lane that runs the tasks of the resource with this number."""
    resource = program.tasks.resources[number]
    ends = [program.devices[d] for d in (resource.device, resource.destination) if d is not None]
    gpus = tuple(dict.fromkeys(end.physical for end in ends if end.is_cuda))
    if resource.in_order:
        return StreamLane(resource.name, gpus)
    return WorkerLane(resource.name, gpus, ends[0].threads if resource.destination is None else 1)


class TorchBackend(Backend):
    """Back end of the engine with a lane for each device and each channel: a thread on the CPU, streams on GPUs.

    Attributes:
        states: Inferences in flight by slot; the caller adds the state of a run before submitting it.
    """

    def __init__(self, program: Program) -> None:
        self.states: dict[int, RunState] = {}
        self._lanes = [make_lane(program, number) for number in range(len(program.tasks.resources))]

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Give a task to its lane."""
        return self._lanes[attempt.resource].start(attempt, self.states[attempt.run.slot], inbox)

    def cancel(self, attempt: Attempt) -> None:
        """Skip the queued tasks of the run; a kernel or torch op that is running goes on to its end."""
        self.states[attempt.run.slot].is_cancelled = True

    def run_ended(self, slot: int) -> None:
        """Drop the tensors of a run except its results."""
        self.states.pop(slot).end()

    def close(self) -> None:
        """End the threads, and wait for the streams."""
        for lane in self._lanes:
            lane.close()


class TorchExecutor(Closing):
    """An executor of a program, which runs its tasks work-conserving; close it, or use it as a context manager.

    Raises ExecutionError if a device has no room for the constants of its ops.

    Args:
        priority: Rank of each op [N]; of the ready tasks, the one with the smallest rank runs first. None takes tasks
            in the order in which they became ready.
        grace_s: Seconds for tasks of a failed run to end, before the run ends without them.
    """

    def __init__(self, program: Program, *, priority: FloatArray | None = None, grace_s: float = GRACE_S) -> None:
        self.program = program
        task_priority = None if priority is None else program.task_priority(priority)
        self.residents = Residents(program)
        self._backend = TorchBackend(program)
        self.engine = Engine(program.tasks, self._backend, priority=task_priority, grace_s=grace_s)
        self._slots = itertools.count()

    def load(self, inputs: Inputs) -> None:
        """Copy inputs to the devices that read them, for all inferences that begin from now on.

        Raises ExecutionError for an unknown name, for a shape that does not fit, and if a device has no room.
        """
        self.residents.load(inputs)

    def begin(self, limit_s: float | None = None) -> tuple[Run, RunState]:
        """Start an inference, which fails after ``limit_s`` seconds; several may be in flight.

        Raises ExecutionError if an input was never loaded or the executor is closed.
        """
        state = RunState(self.program, self.residents.loaded())
        slot = next(self._slots)
        self._backend.states[slot] = state
        try:
            return self.engine.submit(slot, limit_s=limit_s), state
        except BaseException:
            self._backend.run_ended(slot)
            raise

    def submit(self, limit_s: float | None = None) -> TorchRequest:
        """Start an inference, which fails after ``limit_s`` seconds, and return its request."""
        request = TorchRequest(self, limit_s)
        request.start_async()
        return request

    def infer(self, inputs: Inputs | None = None, *, limit_s: float | None = None) -> dict[str, Tensor]:
        """Load inputs, if given, run an inference and return its results; see ``TorchRequest.wait``.

        The inference fails after ``limit_s`` seconds. Raises ExecutionError as ``load``, ``begin`` and ``wait`` do.
        """
        if inputs is not None:
            self.load(inputs)
        return self.submit(limit_s).wait()

    def close(self) -> None:
        """Cancel the inferences in flight, and end the threads."""
        self.engine.close()


class TorchRequest:
    """A request for one inference at a time, used like an ``ov.InferRequest``.

    Each inference fails after ``limit_s`` seconds with an ExecutionError that names the op and the device.
    """

    def __init__(self, executor: TorchExecutor, limit_s: float | None = None) -> None:
        self.executor = executor
        self._limit_s = limit_s

    def infer(self, **_: object) -> None:
        """Run an inference and wait for it; the options of ``ov.InferRequest.infer`` are ignored."""
        self.start_async()
        self.wait()

    def start_async(self) -> None:
        """Start an inference; after its end, ``run`` has its times."""
        self.run, self._state = self.executor.begin(self._limit_s)

    def wait(self) -> dict[str, Tensor]:
        """Wait for the inference, and return its results by name, each on the device that computed it.

        The results share no memory with inputs or constants. Raises ExecutionError if the inference failed.
        """
        self.run.wait()
        return self._state.own_outputs()

    def cancel(self) -> None:
        """End the inference early."""
        self.executor.engine.cancel(self.run)

    @property
    def latency(self) -> float:
        """Return the seconds that the last inference took."""
        return self.run.makespan_s

"""TorchExecutor: a placed graph, ready to run inference after inference, work-conserving."""

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
    """Return what carries out the tasks of a resource."""
    resource = program.tasks.resources[number]
    ends = [program.devices[d] for d in (resource.device, resource.destination) if d is not None]
    gpus = tuple(dict.fromkeys(end.physical for end in ends if end.is_cuda))
    if resource.in_order:
        return StreamLane(resource.name, gpus)
    return WorkerLane(resource.name, gpus, ends[0].threads if resource.destination is None else 1)


class TorchBackend(Backend):
    """One lane per device and channel: a thread on the CPU, streams on GPUs.

    ``states`` are the inferences in flight by slot; whoever submits a run puts its state there first.
    """

    def __init__(self, program: Program) -> None:
        self.states: dict[int, RunState] = {}
        self._lanes = [make_lane(program, number) for number in range(len(program.tasks.resources))]

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Hand it to its lane."""
        return self._lanes[attempt.resource].start(attempt, self.states[attempt.run.slot], inbox)

    def cancel(self, attempt: Attempt) -> None:
        """What is queued behind a running task is skipped; a kernel or torch op that runs goes on to its end."""
        self.states[attempt.run.slot].is_cancelled = True

    def run_ended(self, slot: int) -> None:
        """Drop its tensors but the results."""
        self.states.pop(slot).end()

    def close(self) -> None:
        """End threads, wait for streams."""
        for lane in self._lanes:
            lane.close()


class TorchExecutor(Closing):
    """Runs a program. ``priority`` [N ops] order ready tasks, smallest first; None takes it as it became ready.

    Close it, or use it as a context manager.

    Raises ExecutionError where a device has no room for the constants of the ops on it.
    """

    def __init__(self, program: Program, *, priority: FloatArray | None = None, grace_s: float = GRACE_S) -> None:
        self.program = program
        task_priority = None if priority is None else program.task_priority(priority)
        self.residents = Residents(program)
        self._backend = TorchBackend(program)
        self.engine = Engine(program.tasks, self._backend, priority=task_priority, grace_s=grace_s)
        self._slots = itertools.count()

    def load(self, inputs: Inputs) -> None:
        """Put inputs where they are read, for all inferences that begin from now on.

        Raises ExecutionError for a name or shape that does not fit, and where there is no room.
        """
        self.residents.load(inputs)

    def begin(self, limit_s: float | None = None) -> tuple[Run, RunState]:
        """Start an inference, which fails after ``limit_s`` seconds; several may be in flight.

        Raises ExecutionError where an input is missing or the executor is closed.
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
        """A request whose first inference has begun."""
        request = TorchRequest(self, limit_s)
        request.start_async()
        return request

    def infer(self, inputs: Inputs | None = None, *, limit_s: float | None = None) -> dict[str, Tensor]:
        """Load inputs, if there are any, run an inference and wait for it; see ``TorchRequest.wait``."""
        if inputs is not None:
            self.load(inputs)
        return self.submit(limit_s).wait()

    def close(self) -> None:
        """Cancel what is in flight and end the threads."""
        self.engine.close()


class TorchRequest:
    """One inference at a time, called like a request of OpenVINO's.

    Each fails after ``limit_s`` seconds with an ExecutionError that names op and device.
    """

    def __init__(self, executor: TorchExecutor, limit_s: float | None = None) -> None:
        self.executor = executor
        self._limit_s = limit_s

    def infer(self, **_: object) -> None:
        """Run and wait. Options of OpenVINO's have no meaning here."""
        self.start_async()
        self.wait()

    def start_async(self) -> None:
        """Start an inference, whose times are in ``run`` from its end on."""
        self.run, self._state = self.executor.begin(self._limit_s)

    def wait(self) -> dict[str, Tensor]:
        """The results by name, each on the device that made it, in memory apart from inputs and constants.

        Raises ExecutionError where the inference ended badly.
        """
        self.run.wait()
        return self._state.own_outputs()

    def cancel(self) -> None:
        """End the inference early."""
        self.executor.engine.cancel(self.run)

    @property
    def latency(self) -> float:
        """Seconds that the last inference took."""
        return self.run.makespan_s

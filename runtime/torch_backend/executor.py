"""TorchExecutor: a placed graph, ready to run inference after inference, work-conserving or level by level."""

from __future__ import annotations

import itertools
import threading

from hsdag.ir.errors import ExecutionError
from hsdag.ir.graph import FloatArray
from hsdag.runtime.executor import Engine, Run
from hsdag.runtime.executor.engine import GRACE_S
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.runtime.torch_backend.backend import TorchBackend
from hsdag.runtime.torch_backend.graph import Tensor
from hsdag.runtime.torch_backend.memory import DeviceMemoryError, ledgers_of
from hsdag.runtime.torch_backend.program import Program
from hsdag.runtime.torch_backend.state import Inputs, Residents, RunState


class Inference:
    """One inference in flight; ``run`` has its times."""

    def __init__(self, run: Run, state: RunState, engine: Engine) -> None:
        self.run = run
        self._state = state
        self._engine = engine

    def wait(self, timeout_s: float | None = None) -> dict[str, Tensor]:
        """The results by name, each on the device that made it, in memory apart from inputs and constants.

        Raises ExecutionError where it ended badly; TimeoutError when it has not ended within ``timeout_s``.
        """
        if not self.run.wait(timeout_s):
            raise TimeoutError(f"the inference has not ended within {timeout_s:g} s")
        return self._state.own_outputs()

    def cancel(self) -> None:
        """End it early."""
        self._engine.cancel(self.run)

    @property
    def timeline(self) -> Timeline:
        """What ran where and when."""
        return self.run.timeline


class TorchExecutor:
    """Runs a program. ``ranks`` [N ops] order ready tasks, smallest first; None takes it as it became ready.

    ``barrier`` runs level by level: bulk-synchronous, for comparison. ``count_memory`` keeps count of the bytes on
    every device, not only on those with a limit. Close it, or use it as a context manager.

    Raises DeviceMemoryError where a device has no room for the constants of the ops on it.
    """

    def __init__(
        self,
        program: Program,
        *,
        ranks: FloatArray | None = None,
        barrier: bool = False,
        count_memory: bool = False,
        grace_s: float = GRACE_S,
    ) -> None:
        self.program = program
        self._ledgers = ledgers_of(program, count_memory)
        task_ranks = None if ranks is None else program.task_ranks(ranks)
        self._residents = Residents(program, self._ledgers)
        self._backend = TorchBackend(program)
        try:
            self._engine = Engine(program.tasks, self._backend, ranks=task_ranks, barrier=barrier, grace_s=grace_s)
        except BaseException:
            self._backend.close()
            raise
        self._is_closed = False
        self._loading = threading.Lock()  # taken by callers alone, so that loading never holds up the engine
        self._slots = itertools.count()

    def __enter__(self) -> TorchExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def partition(self) -> str:
        """Whether devices on one GPU have multiprocessors of their own, in words."""
        return self._backend.partition

    @property
    def peak_memory_bytes(self) -> dict[str, int]:
        """The most bytes that lay on each device whose memory is counted."""
        return {ledger.device: ledger.peak_bytes for ledger in self._ledgers if ledger is not None}

    @property
    def held_memory_bytes(self) -> dict[str, int]:
        """The bytes that lie on each device whose memory is counted, now."""
        return {ledger.device: ledger.held_bytes for ledger in self._ledgers if ledger is not None}

    def load(self, inputs: Inputs) -> None:
        """Put inputs where they are read, for all inferences from now on.

        Raises ExecutionError for a name or shape that does not fit, while an inference is in flight and where the
        executor is closed, DeviceMemoryError where there is no room.
        """
        self._check_open()
        with self._loading:
            if self._backend.states:
                raise ExecutionError(
                    f"inputs of {self.program.graph.name!r} are loaded between inferences, but "
                    f"{len(self._backend.states)} are in flight; wait for them, or give inputs to submit instead"
                )
            self._residents.load(inputs)

    def submit(self, inputs: Inputs | None = None, *, limit_s: float | None = None) -> Inference:
        """Start an inference, with ``inputs`` in place of those that were loaded; several may be in flight.

        The tensors given must not change before ``wait`` has returned. Raises ExecutionError where an input is
        missing or does not fit or the executor is closed, DeviceMemoryError where there is no room for it.
        """
        self._check_open()
        fed = self._residents.feed(inputs or {})
        with self._loading:
            try:
                held, addresses = self._residents.held, self._residents.addresses
                state = RunState(self.program, held, fed, self._ledgers, addresses)
            except DeviceMemoryError as error:
                raise ExecutionError(f"the inputs of {self.program.graph.name!r}: {error}") from error
            slot = next(self._slots)
            self._backend.states[slot] = state
        try:
            run = self._engine.submit(slot, limit_s=limit_s)
        except BaseException:
            self._backend.run_ended(slot)
            raise
        return Inference(run, state, self._engine)

    def infer(self, inputs: Inputs | None = None, *, limit_s: float | None = None) -> dict[str, Tensor]:
        """Run an inference and wait for it; see ``submit`` and ``Inference.wait``."""
        return self.submit(inputs, limit_s=limit_s).wait()

    def repeated(self, count: int, *, limit_s: float | None = None) -> list[Run]:
        """Inferences one after another, their results dropped. Raises as ``infer`` does."""
        runs = []
        for _ in range(count):
            inference = self.submit(limit_s=limit_s)
            inference.wait()
            runs.append(inference.run)
        return runs

    def close(self) -> None:
        """Cancel what is in flight and free threads and memory."""
        self._is_closed = True
        self._engine.close()
        self._residents.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ExecutionError(f"the executor of {self.program.graph.name!r} is closed; create another")

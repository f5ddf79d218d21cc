"""TorchBackend: the engine's tasks on torch devices."""

from __future__ import annotations

import torch

from hsdag.runtime.executor import Attempt, Backend, Inbox
from hsdag.runtime.torch_backend.device import LogicalDevice
from hsdag.runtime.torch_backend.lane import CopyLane, InlineLane, Lane, StreamLane, WorkerLane
from hsdag.runtime.torch_backend.program import Program
from hsdag.runtime.torch_backend.state import RunState
from hsdag.runtime.torch_backend.streams import new_stream, partition_streams
from hsdag.runtime.torch_backend.transfer import Route, Transfer


class TorchBackend(Backend):
    """One lane per device and channel: a thread on the CPU, streams on GPUs.

    ``states`` are the inferences in flight by slot; whoever submits a run puts its state there first.
    ``partition`` says in words whether devices on one GPU have multiprocessors of their own. Where there are threads
    alone, the one that ends a task starts what waited for it.
    """

    def __init__(self, program: Program) -> None:
        self.states: dict[int, RunState] = {}
        streams, self.partition = partition_streams(program.devices)
        names = [resource.name for resource in program.tasks.resources]
        self._lanes: list[Lane] = []
        try:
            for device in program.devices:
                self._lanes.append(_device_lane(device, streams.get(device.name)))
            for transfer, name in zip(program.transfers, names, strict=True):
                if transfer is not None:
                    self._lanes.append(_channel_lane(transfer, name))
        except BaseException:
            self.close()
            raise
        self._polled = [lane for lane in self._lanes if isinstance(lane, StreamLane)]
        self.poll_s = 0.0 if self._polled else None
        self.is_helped = not self._polled  # streams are enqueued to by one thread alone

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Hand it to its lane."""
        return self._lanes[attempt.resource].start(attempt, self.states[attempt.slot], inbox)

    def poll(self, inbox: Inbox) -> None:
        """Ask the events of all streams."""
        for lane in self._polled:
            lane.poll(inbox)

    def cancel(self, attempt: Attempt) -> None:
        """What is queued behind a running task is skipped; a kernel or torch op that runs goes on to its end."""
        self.states[attempt.slot].is_cancelled = True

    def abandon(self, attempt: Attempt) -> None:
        """Its lane goes on without it."""
        self._lanes[attempt.resource].abandon(attempt)

    def run_ended(self, slot: int) -> None:
        """Drop its tensors but the results."""
        state = self.states.pop(slot, None)
        if state is not None:
            state.end()

    def close(self) -> None:
        """End threads, wait for streams."""
        for lane in self._lanes:
            lane.close()


def _device_lane(device: LogicalDevice, stream: torch.cuda.Stream | None) -> Lane:
    if not device.is_cuda:
        return WorkerLane(device.name, device.threads)
    given = [stream] if stream is not None else []  # one that hangs is replaced by one on the whole GPU
    return StreamLane(lambda: (given.pop() if given else new_stream(device.physical),))


def _channel_lane(transfer: Transfer, name: str) -> Lane:
    if transfer.route is Route.SHARED:
        return InlineLane()
    if transfer.route is Route.HOST:
        return CopyLane(name)
    if transfer.route is Route.MIXED:
        return WorkerLane(name)
    gpus = dict.fromkeys((transfer.source.physical, transfer.destination.physical))
    return StreamLane(lambda: tuple(new_stream(gpu) for gpu in gpus))

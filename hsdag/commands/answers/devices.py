"""Of ``hsdag devices``."""

from __future__ import annotations

from typing_extensions import TypedDict


class OpenVinoDevice(TypedDict):
    """A device of OpenVINO's; ``failure`` says why it does not load."""

    name: str
    full_name: str
    capabilities: tuple[str, ...]
    failure: str | None


class CudaDevice(TypedDict):
    """A GPU of torch's."""

    name: str
    full_name: str
    memory_bytes: int


class Cpu(TypedDict):
    """Threads of the CPU; ``max_partitions`` is 0 where it cannot be divided."""

    performance_threads: int
    efficiency_threads: int
    max_partitions: int


class Answer(TypedDict):
    """The devices of this machine."""

    openvino: list[OpenVinoDevice]
    cuda: list[CudaDevice]
    cpu: Cpu

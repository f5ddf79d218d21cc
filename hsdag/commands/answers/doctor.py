"""Of ``hsdag doctor``."""

from __future__ import annotations

from typing_extensions import TypedDict

from hsdag.runtime.measuring.messages import DeviceFacts, Precision, Transfer


class Host(TypedDict):
    """The machine."""

    threads: int
    memory_bytes: float
    usable_memory_bytes: float


class Device(TypedDict):
    """A device; ``facts`` are null where it does not load."""

    name: str
    plugin: str
    properties: dict[str, str]
    facts: DeviceFacts | None
    outputs_of_a_small_network: Precision | None


class Pair(TypedDict):
    """Two devices: how a tensor goes from one to the other, and what both gain at once."""

    names: tuple[str, str]
    there: Transfer | None
    back: Transfer | None
    gains: dict[str, float]


class HeteroDevice(TypedDict):
    """What HETERO would give a device."""

    name: str
    ops: int
    submodels: int
    weight_bytes: float


class Hetero(TypedDict):
    """What HETERO would do."""

    target: str
    policy: str | None
    failure: str | None
    submodels: int
    devices: list[HeteroDevice]


class Model(TypedDict):
    """The model, as HETERO would run it."""

    name: str
    ops: int
    weight_bytes: int
    counted_weight_bytes: float
    open_inputs: list[str]
    unsupported: dict[str, list[str]]
    variables: list[str]
    outputs: dict[str, dict[str, float | None] | None]
    overflowing: list[str]
    hetero: list[Hetero]


class Finding(TypedDict):
    """A sentence about a device, a pair or the model."""

    severity: str
    about: str
    text: str


class Examined(TypedDict):
    """What is true on this machine."""

    openvino: str
    host: Host
    devices: list[Device]
    pairs: list[Pair]
    model: Model | None
    findings: list[Finding]
    next: list[str]


class Check(TypedDict):
    """A check of the CUDA engine."""

    name: str
    passed: bool
    detail: str
    seconds: float


class Checked(TypedDict):
    """The answer to ``--cuda``."""

    devices: list[str]
    machine: dict[str, str]
    is_on_gpu: bool
    sentence: str
    items: list[Check]


Answer = Examined | Checked

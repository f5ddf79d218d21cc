"""The workloads by name: which options each takes, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hsdag.ir.errors import ModelError, OptionError
from hsdag.models.chainmm import chainmm
from hsdag.models.ffnn import ffnn
from hsdag.models.gpt3 import gpt3
from hsdag.models.llama import llama_block, llama_layer
from hsdag.models.random_wired import RandomWiring, random_wired
from hsdag.models.workload import Workload

WIRING_OPTIONS = ("family", "nodes", "modules", "channels", "dependence", "batch", "seed")
MAX_DEVICES = 64


@dataclass(frozen=True)
class WorkloadSpec:
    """One workload.

    ``platform`` is where it is placed by default. ``options`` names its options beside the platform;
    ``servers`` is the default number of copies of the platform, over a network. ``make`` takes the number of
    devices, and the given options by name.
    """

    name: str
    summary: str
    platform: str
    options: tuple[str, ...]
    make: Callable[[int, Mapping[str, str | int]], Workload]
    servers: int = 1

    def build(self, num_devices: int, options: Mapping[str, str | int] | None = None) -> Workload:
        """The workload for ``num_devices`` devices.

        Raises OptionError for an option that it does not take, a value out of range, or a number of devices
        over which it cannot be sharded.
        """
        self.check_options(options or {})
        return self.make(num_devices, options or {})

    def check_options(self, names: Mapping[str, object]) -> None:
        """Raise OptionError when one of ``names`` is not among the options."""
        wrong = [name for name in names if name not in self.options]
        if wrong:
            taken = ", ".join(f"--{name}" for name in self.options)
            raise OptionError(f"{self.name} does not take --{wrong[0]}; beside --platform it takes {taken}")


def _sharded(name: str, summary: str, make: Callable[[int], Workload]) -> WorkloadSpec:
    def build(num_devices: int, _: Mapping[str, str | int]) -> Workload:
        if not 2 <= num_devices <= MAX_DEVICES:
            raise OptionError(f"{name} is sharded over 2 to {MAX_DEVICES} devices, not {num_devices}")
        try:
            return make(num_devices)
        except OptionError as error:
            raise OptionError(f"{name} over {num_devices} devices: {error}") from error

    return WorkloadSpec(name, summary, "p100x4", ("devices",), build)


def _random_wired(_: int, options: Mapping[str, str | int]) -> Workload:
    given = {name: value for name, value in options.items() if name in WIRING_OPTIONS}
    return random_wired(RandomWiring(**given))  # type: ignore[arg-type]  # the command line gives each its type


_SPECS = {
    spec.name: spec
    for spec in (
        _sharded("chainmm", "(A B) + (C (D E)) of 10,000 x 10,000 matrices, sharded (DOPPLER)", chainmm),
        _sharded("ffnn", "A feed-forward network 32 - 65,536 - 32 over 32,768 rows, sharded (DOPPLER)", ffnn),
        _sharded("llama-block", "A transformer block of Llama 7B over 4096 tokens, sharded (DOPPLER)", llama_block),
        _sharded("llama-layer", "The same with causal mask, last norm and logits (DOPPLER)", llama_layer),
        WorkloadSpec(
            "random-wired",
            "Randomly wired networks WS, ER, BA of several modules (DiviML)",
            "t4-a100",
            ("devices", *WIRING_OPTIONS),
            _random_wired,
        ),
        WorkloadSpec(
            "gpt3",
            "A pass over 20 tokens through GPT-3, on six servers (DiviML)",
            "t4-a100",
            ("servers",),
            lambda _, __: gpt3(),
            servers=6,
        ),
    )
}


def list_workloads() -> tuple[WorkloadSpec, ...]:
    """Every workload."""
    return tuple(_SPECS.values())


def is_workload(name: str) -> bool:
    """Whether a workload is called ``name``."""
    return name in _SPECS


def find_workload(name: str) -> WorkloadSpec:
    """The workload called ``name``; raises ModelError naming the choices."""
    if name not in _SPECS:
        raise ModelError(f"there is no workload {name!r}; choose one of {', '.join(_SPECS)}")
    return _SPECS[name]

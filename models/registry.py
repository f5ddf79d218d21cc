"""The models of the zoo and the workloads by name: listing, building and saving them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.ir.errors import ModelError, OptionError
from hsdag.models import bert, inception, llama_decoder, resnet
from hsdag.models.chainmm import ChainSizes, chainmm
from hsdag.models.enas import EnasSizes, enas
from hsdag.models.ffnn import FeedForwardSizes, ffnn
from hsdag.models.gpt3 import gpt3
from hsdag.models.llama import LlamaSizes, llama_block, llama_layer
from hsdag.models.nmt import NmtSizes, nmt
from hsdag.models.ptb import PtbSizes, ptb
from hsdag.models.random_chain import RandomChain, random_chain
from hsdag.models.random_wired import RandomWiring, random_wired
from hsdag.models.spec import ModelSpec
from hsdag.models.stateful import SPECS as STATEFUL_SPECS
from hsdag.models.stateful import StatefulSpec
from hsdag.models.transformer import TransformerSizes, transformer
from hsdag.models.workload import Workload

if TYPE_CHECKING:
    import openvino as ov

MAX_SEED = 2**63 - 1
WIRING_OPTIONS = ("family", "nodes", "modules", "channels", "dependence", "batch", "seed")
MAX_DEVICES = 64
_FAMILIES = (resnet, inception, bert, llama_decoder)
_SPECS: dict[str, ModelSpec] = {spec.name: spec for family in _FAMILIES for spec in family.SPECS}
_LANGUAGE_MODELS = {spec.name: spec for spec in STATEFUL_SPECS}


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


def _sharded(name: str, summary: str, make: Callable[[int, int], Workload], size: int) -> WorkloadSpec:
    """A workload for so many devices, of a size that may be given."""
    return _built(name, summary, "size", lambda k, given: make(k, int(given.get("size", size))))


def _sharded_drawn(name: str, summary: str, make: Callable[[int, int], Workload]) -> WorkloadSpec:
    """A workload for so many devices and a seed."""
    return _built(name, summary, "seed", lambda k, given: make(k, _seed_of(given)))


def _built(
    name: str, summary: str, option: str, make: Callable[[int, Mapping[str, str | int]], Workload]
) -> WorkloadSpec:
    def build(num_devices: int, given: Mapping[str, str | int]) -> Workload:
        if not 2 <= num_devices <= MAX_DEVICES:
            raise OptionError(f"{name} is sharded over 2 to {MAX_DEVICES} devices, not {num_devices}")
        if int(given.get("size", 1)) < 1:
            raise OptionError(f"the size of {name} must be at least 1, not {given['size']}")
        try:
            return make(num_devices, given)
        except OptionError as error:
            raise OptionError(f"{name} over {num_devices} devices: {error}") from error

    return WorkloadSpec(name, summary, "p100x4", ("devices", option), build)


def _drawn(name: str, summary: str, make: Callable[[int], Workload]) -> WorkloadSpec:
    """A workload whose sizes and wiring follow from a seed alone."""
    return WorkloadSpec(name, summary, "p100x4", ("devices", "seed"), lambda _, given: make(_seed_of(given)))


def _seed_of(options: Mapping[str, str | int]) -> int:
    seed = int(options.get("seed", 0))
    _check_seed(seed)
    return seed


def _random_wired(_: int, options: Mapping[str, str | int]) -> Workload:
    given = {name: value for name, value in options.items() if name in WIRING_OPTIONS}
    return random_wired(RandomWiring(**given))  # type: ignore[arg-type]  # the command line gives each its type


_WORKLOADS = {
    spec.name: spec
    for spec in (
        _sharded(
            "chainmm",
            "(A B) + (C (D E)) of 10,000 x 10,000 matrices, sharded (DOPPLER)",
            lambda k, rows: chainmm(k, ChainSizes(rows)),
            ChainSizes.size,
        ),
        _sharded(
            "ffnn",
            "A feed-forward network 32 - 65,536 - 32 over 32,768 rows, sharded (DOPPLER)",
            lambda k, rows: ffnn(k, FeedForwardSizes(batch=rows, hidden=2 * rows)),
            FeedForwardSizes.batch,
        ),
        _sharded(
            "llama-block",
            "A transformer block of Llama 7B over 4096 tokens, sharded (DOPPLER)",
            lambda k, tokens: llama_block(k, LlamaSizes(tokens)),
            LlamaSizes.tokens,
        ),
        _sharded(
            "llama-layer",
            "The same with causal mask, last norm and logits (DOPPLER)",
            lambda k, tokens: llama_layer(k, LlamaSizes(tokens)),
            LlamaSizes.tokens,
        ),
        _sharded_drawn(
            "chain",
            "A random chain or tree of matrix products, sharded",
            lambda k, seed: random_chain(k, RandomChain.drawn(seed)),
        ),
        _sharded_drawn(
            "transformer",
            "Transformer blocks of random sizes, sharded",
            lambda k, seed: transformer(k, TransformerSizes.drawn(seed, k)),
        ),
        WorkloadSpec(
            "random-wired",
            "Randomly wired networks WS, ER, BA of several modules (DiviML)",
            "t4-a100",
            ("devices", *WIRING_OPTIONS),
            _random_wired,
        ),
        _drawn("enas", "Random convolutional cells on CIFAR-10 images (Placeto)", lambda s: enas(EnasSizes.drawn(s))),
        _drawn("nmt", "An unrolled translation model of random sizes (Placeto)", lambda s: nmt(NmtSizes.drawn(s))),
        _drawn("ptb", "A random recurrent cell, unrolled over words (Placeto)", lambda s: ptb(PtbSizes.drawn(s))),
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


def list_models() -> tuple[ModelSpec, ...]:
    """Every model of the zoo, benchmark models before tiny ones; does not import torch."""
    return tuple(sorted(_SPECS.values(), key=lambda spec: spec.is_tiny))


def list_language_models() -> tuple[StatefulSpec, ...]:
    """Every language model with state, benchmark models before tiny ones; does not import OpenVINO."""
    return tuple(sorted(_LANGUAGE_MODELS.values(), key=lambda spec: spec.is_tiny))


def find_model(name: str) -> ModelSpec:
    """The model of fixed shapes called ``name``; raises ModelError naming the choices."""
    if name not in _SPECS:
        raise ModelError(f"the zoo has no model {name!r} of fixed shapes; {_choices()}")
    return _SPECS[name]


def check_model_name(name: str) -> None:
    """Raise ModelError naming the choices where the zoo has no model called ``name``."""
    if name not in _SPECS and name not in _LANGUAGE_MODELS:
        raise ModelError(f"the zoo has no model {name!r}; {_choices()}")


def _choices() -> str:
    models, language, workloads = (
        ", ".join(spec.name for spec in specs) for specs in (list_models(), list_language_models(), list_workloads())
    )
    return f"choose one of {models}; language models with state are {language}; workloads are {workloads}"


def build_model(name: str, seed: int = 0) -> ov.Model:
    """The zoo's model ``name`` as read from its files, in memory; one seed always gives the same weights.

    Raises ModelError for an unknown name, OptionError for a seed outside 0..2**63-1.
    """
    check_model_name(name)
    _check_seed(seed)
    return (_LANGUAGE_MODELS.get(name) or _SPECS[name]).build(seed)


def save_model_files(name: str, path: str | Path, seed: int = 0) -> Path:
    """Build the zoo's model ``name``, write ``path`` (ending in .xml) and the .bin beside it, return ``path``.

    Raises ModelError for an unknown name, OptionError for another suffix or a seed outside 0..2**63-1,
    OutputError when the files cannot be written.
    """
    check_model_name(name)
    _check_seed(seed)
    target = Path(path)
    if target.suffix != ".xml":
        raise OptionError(f"the model's file must end in .xml (the weights go to .bin beside it), got {str(path)!r}")
    from hsdag.ir.export.base import write_ir
    from hsdag.models.convert import check_target, to_openvino

    check_target(target)
    if name in _LANGUAGE_MODELS:
        write_ir(build_model(name, seed), target, compress_to_fp16=False)
    else:
        write_ir(to_openvino(_SPECS[name], _SPECS[name].make_network(seed)), target, compress_to_fp16=True)
    return target


def _check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise OptionError(f"the seed must lie in 0..2**63-1, got {seed}")


def list_workloads() -> tuple[WorkloadSpec, ...]:
    """Every workload."""
    return tuple(_WORKLOADS.values())


def is_workload(name: str) -> bool:
    """Whether a workload is called ``name``."""
    return name in _WORKLOADS


def find_workload(name: str) -> WorkloadSpec:
    """The workload called ``name``; raises ModelError naming the choices."""
    if name not in _WORKLOADS:
        raise ModelError(f"there is no workload {name!r}; choose one of {', '.join(_WORKLOADS)}")
    return _WORKLOADS[name]

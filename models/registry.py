"""The models of the zoo and the workloads by name, and workloads with their options as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.ir.errors import ModelError, OptionError
from hsdag.models.diviml import RandomWiring, gpt3, random_wired
from hsdag.models.networks import LANGUAGE_MODELS, MODELS, ModelSpec, StatefulSpec
from hsdag.models.placeto import EnasSizes, NmtSizes, PtbSizes, enas, nmt, ptb
from hsdag.models.sharded_workloads import (
    ChainSizes,
    FeedForwardSizes,
    LlamaSizes,
    RandomChain,
    TransformerSizes,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
    random_chain,
    transformer,
)
from hsdag.models.workload import Workload

if TYPE_CHECKING:
    import openvino as ov

MAX_SEED = 2**63 - 1
WIRING_OPTIONS = ("family", "nodes", "modules", "channels", "dependence", "batch", "seed")
MAX_DEVICES = 64
_SPECS = {spec.name: spec for spec in MODELS}
_LANGUAGE_MODELS = {spec.name: spec for spec in LANGUAGE_MODELS}


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


def _sized(
    name: str,
    summary: str,
    option: str,
    make: Callable[[int, int], Workload],
    default: int = 0,
    most: int = MAX_DEVICES,
) -> WorkloadSpec:
    """A workload whose one ``option`` is its "size" or a "seed"; it is sharded over 2 to ``most`` devices, if over any.

    ``make`` takes the number of devices and the option's value.
    """

    def build(num_devices: int, given: Mapping[str, str | int]) -> Workload:
        value = int(given.get(option, default))
        if most and not 2 <= num_devices <= most:
            raise OptionError(f"{name} is sharded over 2 to {most} devices, not {num_devices}")
        if option == "seed":
            _check_seed(value)
        elif value < 1:
            raise OptionError(f"the size of {name} must be at least 1, not {value}")
        try:
            return make(num_devices, value)
        except OptionError as error:
            raise OptionError(f"{name} over {num_devices} devices: {error}") from error

    return WorkloadSpec(name, summary, "p100x4", ("devices", option), build)


def _drawn(name: str, summary: str, make: Callable[[int], Workload]) -> WorkloadSpec:
    """A workload whose sizes and wiring follow from a seed alone, for any number of devices."""
    return _sized(name, summary, "seed", lambda _, seed: make(seed), most=0)


def _random_wired(_: int, options: Mapping[str, str | int]) -> Workload:
    given = {name: value for name, value in options.items() if name in WIRING_OPTIONS}
    return random_wired(RandomWiring(**given))  # type: ignore[arg-type]  # the command line gives each its type


_WORKLOADS = {
    spec.name: spec
    for spec in (
        _sized(
            "chainmm",
            "(A B) + (C (D E)) of 10,000 x 10,000 matrices, sharded (DOPPLER)",
            "size",
            lambda k, rows: chainmm(k, ChainSizes(rows)),
            ChainSizes.size,
        ),
        _sized(
            "ffnn",
            "A feed-forward network 32 - 65,536 - 32 over 32,768 rows, sharded (DOPPLER)",
            "size",
            lambda k, rows: ffnn(k, FeedForwardSizes(batch=rows, hidden=2 * rows)),
            FeedForwardSizes.batch,
        ),
        _sized(
            "llama-block",
            "A transformer block of Llama 7B over 4096 tokens, sharded (DOPPLER)",
            "size",
            lambda k, tokens: llama_block(k, LlamaSizes(tokens)),
            LlamaSizes.tokens,
        ),
        _sized(
            "llama-layer",
            "The same with causal mask, last norm and logits (DOPPLER)",
            "size",
            lambda k, tokens: llama_layer(k, LlamaSizes(tokens)),
            LlamaSizes.tokens,
        ),
        _sized(
            "chain",
            "A random chain or tree of matrix products, sharded",
            "seed",
            lambda k, seed: random_chain(k, RandomChain.drawn(seed)),
        ),
        _sized(
            "transformer",
            "Transformer blocks of random sizes, sharded",
            "seed",
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
    from hsdag.ir.files import write_ir
    from hsdag.models.torch_networks import check_target, to_openvino

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


TEXT_OPTIONS = ("family", "dependence")
"""Options of workloads that are no numbers."""

_NAMED = re.compile(r"([\w-]+)(?:\[([^\[\]]*)\])?")


def names_workload(text: str) -> bool:
    """Whether a text is the name of a workload, with or without options."""
    match = _NAMED.fullmatch(text)
    return match is not None and is_workload(match[1])


def workload_called(text: str, num_devices: int) -> tuple[str, Workload]:
    """The full text and the workload of a text, for ``num_devices`` devices where it does not say for how many.

    Raises OptionError for options that the workload does not take, or values out of range, ModelError for its name.
    """
    match = _NAMED.fullmatch(text)
    spec = find_workload(text if match is None else match[1])
    given = dict(_item(text, item) for item in filter(None, ((match[2] or "") if match else "").split(";")))
    options = parse_workload_options(given)
    if "devices" in spec.options:
        options.setdefault("devices", max(2, num_devices))
    spec.check_options(options)
    body = ";".join(f"{key}={value}" for key, value in options.items())
    workload = spec.build(int(options.get("devices", num_devices)), options)
    return (f"{spec.name}[{body}]" if body else spec.name), workload


def parse_workload_options(given: Mapping[str, str]) -> dict[str, str | int]:
    """Options of workloads from text. Raises OptionError for a text where a whole number is expected."""
    options: dict[str, str | int] = {}
    for name, text in given.items():
        is_number = text.removeprefix("-").isdecimal()
        if not is_number and name not in TEXT_OPTIONS:
            raise OptionError(f"{name} must be a whole number, not {text!r}")
        options[name] = int(text) if is_number else text
    return options


def _item(text: str, item: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in item.partition("="))
    if not equals or not key or not value:
        raise OptionError(f"workload {text!r}: {item!r} is not of the form OPTION=VALUE")
    return key, value

"""Look up models of the zoo and workloads by name, and parse workloads with options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import openvino as ov

from hsdag.base.errors import ModelError, OptionError, check_seed
from hsdag.base.files import check_writable
from hsdag.ir.graph.reader import write_ir
from hsdag.models.diviml import RandomWiring, random_wired
from hsdag.models.networks import LANGUAGE_MODELS, MODELS
from hsdag.models.placeto import EnasSizes, NmtSizes, PtbSizes, enas, nmt, ptb
from hsdag.models.sharded_workloads import (
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

WIRING_OPTIONS = ("family", "nodes", "modules", "channels", "dependence", "batch", "seed")
MAX_DEVICES = 64
_MODELS = {spec.name: spec for spec in (*MODELS, *LANGUAGE_MODELS)}


@dataclass(frozen=True)
class WorkloadSpec:
    """Specification of one workload.

    ``make`` takes the number of devices and, by keyword, any of ``options`` except ``devices``. ``platform`` is the
    platform that the workload is placed on by default. ``is_sharded`` says that the workload is sharded over its
    devices, of which there must be 2 to MAX_DEVICES.
    """

    name: str
    summary: str
    make: Callable[..., Workload]
    options: tuple[str, ...]
    platform: str = "p100x4"
    is_sharded: bool = False

    def build(self, num_devices: int, options: Mapping[str, str | int] | None = None) -> Workload:
        """Build the workload for ``num_devices`` devices.

        Raises OptionError for an unknown option, a value out of range, or a number of devices over which the workload
        cannot be sharded.
        """
        self.check_options(options or {})
        arguments = {name: value for name, value in (options or {}).items() if name != "devices"}
        check_seed(int(arguments.get("seed", 0)))
        for option in ("size", "blocks"):
            if int(arguments.get(option, 1)) < 1:
                raise OptionError(f"the {option} of {self.name} must be at least 1, not {arguments[option]}")
        if not self.is_sharded:
            return self.make(num_devices, **arguments)
        if not 2 <= num_devices <= MAX_DEVICES:
            raise OptionError(f"{self.name} is sharded over 2 to {MAX_DEVICES} devices, not {num_devices}")
        try:
            return self.make(num_devices, **arguments)
        except OptionError as error:
            raise OptionError(f"{self.name} over {num_devices} devices: {error}") from error

    def check_options(self, names: Mapping[str, object]) -> None:
        """Raise OptionError if one of ``names`` is not an option of this workload."""
        wrong = [name for name in names if name not in self.options]
        if wrong:
            raise OptionError(f"{self.name} does not take {wrong[0]!r}; it takes {', '.join(self.options)}")


def _sharded(name: str, summary: str, options: str, make: Callable[..., Workload]) -> WorkloadSpec:
    return WorkloadSpec(name, summary, make, ("devices", *options.split()), is_sharded=True)


def _drawn(name: str, summary: str, make: Callable[[int], Workload]) -> WorkloadSpec:
    """Specify a workload whose sizes and wiring follow from a seed alone, for any number of devices."""
    return WorkloadSpec(name, summary, lambda _, seed=0: make(seed), ("devices", "seed"))


WORKLOADS = {
    spec.name: spec
    for spec in (
        _sharded("chainmm", "(A B) + (C (D E)) of 10,000 x 10,000 matrices, sharded (DOPPLER)", "size", chainmm),
        _sharded(
            "ffnn",
            "A feed-forward network 32 - 65,536 - 32 over 32,768 rows, sharded (DOPPLER)",
            "size",
            lambda k, size=2**15: ffnn(k, batch=size, hidden=2 * size),
        ),
        _sharded(
            "llama-block",
            "Transformer blocks of Llama 7B over 4096 tokens in a row, one by default, sharded (DOPPLER)",
            "size blocks",
            lambda k, size=LlamaSizes.tokens, blocks=1: llama_block(k, *(LlamaSizes(size) for _ in range(blocks))),
        ),
        _sharded(
            "llama-layer",
            "The same with causal mask, last norm and logits (DOPPLER)",
            "size",
            lambda k, size=LlamaSizes.tokens: llama_layer(k, LlamaSizes(size)),
        ),
        _sharded(
            "chain",
            "A random chain or tree of matrix products, sharded",
            "seed",
            lambda k, seed=0: random_chain(k, RandomChain.drawn(seed)),
        ),
        _sharded(
            "transformer",
            "Transformer blocks of random sizes, sharded",
            "seed",
            lambda k, seed=0: transformer(k, TransformerSizes.drawn(seed, k)),
        ),
        WorkloadSpec(
            "random-wired",
            "Randomly wired networks WS, ER, BA of several modules (DiviML)",
            lambda _, **options: random_wired(RandomWiring(**options)),
            ("devices", *WIRING_OPTIONS),
            "t4-a100",
        ),
        _drawn("enas", "Random convolutional cells on CIFAR-10 images (Placeto)", lambda s: enas(EnasSizes.drawn(s))),
        _drawn("nmt", "An unrolled translation model of random sizes (Placeto)", lambda s: nmt(NmtSizes.drawn(s))),
        _drawn("ptb", "A random recurrent cell, unrolled over words (Placeto)", lambda s: ptb(PtbSizes.drawn(s))),
    )
}


def check_model_name(name: str) -> None:
    """Raise ModelError, with the choices, if the zoo has no model called ``name``."""
    if name not in _MODELS:
        models, language = (", ".join(spec.name for spec in specs) for specs in (MODELS, LANGUAGE_MODELS))
        raise ModelError(
            f"the zoo has no model {name!r}; choose one of {models}; language models with "
            f"state are {language}; workloads are {', '.join(WORKLOADS)}"
        )


def build_model(name: str, seed: int = 0) -> ov.Model:
    """Build the zoo's model ``name`` in memory; the same seed always gives the same weights.

    Raises ModelError for an unknown name and OptionError for a seed outside 0..2**63-1.
    """
    check_model_name(name)
    check_seed(seed)
    return _MODELS[name].build(seed)


def save_model_files(name: str, path: str | Path, seed: int = 0) -> Path:
    """Build the zoo's model ``name``, write it to ``path`` (ending in .xml) with a .bin beside it, and return ``path``.

    Raises what ``build_model`` does, OptionError for another suffix, and OutputError if the files cannot be written.
    """
    target = Path(path)
    if target.suffix != ".xml":
        raise OptionError(f"the model's file must end in .xml (the weights go to .bin beside it), got {str(path)!r}")
    check_writable(target)
    write_ir(build_model(name, seed), target)
    return target


def find_workload(name: str) -> WorkloadSpec:
    """Return the specification of the workload called ``name``. Raises ModelError with the choices."""
    if name not in WORKLOADS:
        raise ModelError(f"there is no workload {name!r}; choose one of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


TEXT_OPTIONS = ("family", "dependence")
"""Options of workloads whose values are text; all others are whole numbers."""

_NAMED = re.compile(r"([\w-]+)(?:\[([^\[\]]*)\])?")


def names_workload(text: str) -> bool:
    """Return whether ``text`` names a workload, with or without options."""
    match = _NAMED.fullmatch(text)
    return match is not None and match[1] in WORKLOADS


def parse_workload(text: str) -> tuple[WorkloadSpec, dict[str, str | int]]:
    """Parse ``NAME[OPTION=VALUE;...]`` into the workload's specification and its options.

    Raises ModelError for an unknown name, and OptionError for malformed options or a value that should be a whole
    number.
    """
    match = _NAMED.fullmatch(text)
    spec = find_workload(text if match is None else match[1])
    options: dict[str, str | int] = {}
    for item in filter(None, ((match and match[2]) or "").split(";")):
        key, _, value = (part.strip() for part in item.partition("="))
        if not key or not value:
            raise OptionError(f"workload {text!r}: {item!r} is not of the form OPTION=VALUE")
        is_number = value.removeprefix("-").isdecimal()
        if not is_number and key not in TEXT_OPTIONS:
            raise OptionError(f"{key} must be a whole number, not {value!r}")
        if key in options:
            raise OptionError(f"workload {text!r}: {key} is given twice")
        options[key] = int(value) if is_number else value
    return spec, options


def workload_called(text: str, num_devices: int) -> tuple[str, Workload]:
    """Build the workload that ``text`` describes; return its full text, with ``devices`` filled in, and the workload.

    ``num_devices`` applies where the text does not state ``devices``. Raises what ``parse_workload`` does, and
    OptionError for unknown options or values out of range.
    """
    spec, options = parse_workload(text)
    if "devices" in spec.options:
        options.setdefault("devices", max(2, num_devices))
    body = ";".join(f"{key}={value}" for key, value in options.items())
    workload = spec.build(int(options.get("devices", num_devices)), options)
    return (f"{spec.name}[{body}]" if body else spec.name), workload

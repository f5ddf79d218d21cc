"""Types of commands' options and arguments; a command takes the parameters of the API function that it calls."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from typer import Argument, Option
from typer.core import TyperCommand

from hsdag.base.errors import HyperParameterError, OptionError

Model: TypeAlias = Annotated[
    Path, Argument(help="A model file: OpenVINO IR, ONNX, or any other format that OpenVINO reads.")
]
ProblemFile: TypeAlias = Annotated[
    Path, Argument(help="A problem file: ops with their time on each device, edges, and links.")
]
Json: TypeAlias = Annotated[bool, Option("--json", help="Print the result as one JSON document.")]
Shape: TypeAlias = Annotated[
    str | None, Option("--shape", "-shape", help="Fix input shapes: NAME[1,3,224,224],... or 1,3,224,224.")
]
DataShape: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--data-shape",
        "-data_shape",
        metavar="[BEFORE>]TIMED[@WEIGHT]",
        help="Shapes of typical data for dynamic inputs: NAME[1,128],... BEFORE runs first and is not timed; WEIGHT is "
        "how often these shapes occur. Repeatable.",
    ),
]
Tokens: TypeAlias = Annotated[
    str | None,
    Option(
        "--tokens",
        metavar="NEW[+PAST][@WEIGHT],...",
        help="Typical inferences of a language model: 128,1+1024 is 128 tokens, and one token after 1024.",
    ),
]
Inputs: TypeAlias = Annotated[
    Path | None, Option("--input", "-i", help="An .npz file with one array per input. Default: random values.")
]
Devices: TypeAlias = Annotated[
    str | None,
    Option(
        "--devices",
        "-d",
        help="Devices: CPU,GPU.0[KEY=VALUE;...] or NAME=PLUGIN[KEY=VALUE;...]. Default: all.",
    ),
]
PartitionCpu: TypeAlias = Annotated[
    int | None, Option("--partition-cpu", metavar="N", help="Divide the CPU into N devices.")
]
Platform: TypeAlias = Annotated[
    str | None,
    Option("--platform", help="Use the analytic costs of a platform, a name or a .toml file; nothing is measured."),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set any other option, or a hyper-parameter of the method; a wrong name lists them. Repeatable.",
    ),
]
Trace: TypeAlias = Annotated[
    Path | None, Option("--trace", metavar="FILE.json", help="Write the timeline as a Chrome/Perfetto trace.")
]
Workers: TypeAlias = Annotated[
    str | None,
    Option(
        "--workers",
        metavar="WORKERS",
        help="Spread the work over N processes (local:N) or a Ray cluster (ray, or ray://HOST:PORT). "
        "Default: this process alone.",
    ),
]


def _option(kind: Any, text: str, *flags: str, **more: Any) -> Callable[[str], Any]:
    """Return a function from a parameter's name to its type; the flag is by default the name with dashes."""
    return lambda name: Annotated[kind, Option(*(flags or [f"--{name.replace('_', '-')}"]), help=text, **more)]


_TAKEN: dict[str, Callable[[str], Any]] = {
    "method": _option(str, "For researchers: search method; an unknown name lists the choices."),
    "preset": _option(str, "For researchers: preset of the method's hyper-parameters, for example paper for hsdag."),
    "init": _option(
        Path | None,
        "Begin with a policy from 'hsdag train', for the method that it was trained for; auto takes those of rules; "
        "shipped: the one that comes with hsdag.",
        metavar="POLICY",
    ),
    "start": _option(
        Path | None, "Start from this placement, and replace it only by one that is faster.", metavar="PLACEMENT"
    ),
    "executor": _option(
        str,
        "For researchers: what runs the placed model: hetero, work-conserving or cuda; auto compares the first two.",
    ),
    "objective": _option(
        str, "What to optimise: latency, throughput, memory, energy, or a weighted sum: latency=1,memory=0.5."
    ),
    "execution": _option(str, "How devices run: work-conserving, or sequential like HETERO."),
    "order": _option(
        str | None,
        "Which ready op runs first: priority, fifo, critical-path, depth-first or random. Default: priority if the "
        "placement has priorities, otherwise fifo.",
    ),
    "links": _option(
        str, "How transfers share links: independent, egress or channel; with the objective throughput also blocking."
    ),
    "reward": _option(
        str | None, "For researchers: how plans are judged: measured, simulated or hybrid (the default)."
    ),
    "fresh": _option(bool, "Ignore cached profiles and measure again."),
    "budget": _option(str, "Time limit of the whole search: 10s, 5m, 1h."),
    "max_evaluations": _option(
        int | None, "Stop after evaluating N placements; 'hsdag place' counts those that it measures."
    ),
    "candidate_limit": _option(str, "Time limit for measuring one candidate: 60s, 2m."),
    "seed": _option(int, "Seed of the search, of random inputs and of --order random."),
    "resume": _option(bool, "Continue the search in the run folder."),
    "reference": _option(str, "Reference that outputs are compared with: cpu or op-by-op."),
    "max_difference": _option(
        float | None, "Largest allowed difference of outputs from the reference, relative to its largest value."
    ),
    "memory": _option(
        str | None,
        "Memory for weights, state and results: GPU.0=8GB,GPU.1=512MiB. Default: what the devices or the problem file "
        "report.",
        metavar="DEVICE=SIZE,...",
    ),
    "pins": _option(
        list[str] | None,
        "Keep ops whose whole name matches on that device. Repeatable.",
        "--pin",
        metavar="REGEX=DEVICE",
    ),
    "infer_precision": _option(
        str | None,
        "Precision that devices compute in: f32, f16 or bf16; any also tries lower ones and keeps those whose outputs "
        "agree.",
        "--infer-precision",
        "-infer_precision",
        metavar="PRECISION",
    ),
}
"""Parameters of API functions that become options, apart from those with a type of their own above."""

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "place": {
        "What": ("shape", "data_shape", "tokens", "inputs", "objective"),
        "Where": ("devices", "partition_cpu"),
        "How long": ("budget", "resume"),
        "Limits": ("memory", "pins"),
        "Output": ("output", "verbose", "as_json"),
        "For researchers": ("settings",),
    },
    "solve": {
        "What": ("method", "objective", "execution", "links"),
        "How long": ("budget", "seed"),
        "Limits": ("memory", "pins", "start"),
        "Output": ("output", "trace", "as_json"),
        "For researchers": ("settings",),
    },
    "bench": {
        "What": ("model_option", "shape", "data_shapes", "tokens", "inputs"),
        "Candidates": ("placement", "devices", "partition_cpu"),
        "How": ("hint", "requests", "seed"),
        "How long": ("time", "iterations"),
        "Output": ("trace", "as_json"),
        "For researchers": ("executor",),
    },
    "compare": {
        "What": ("methods", "seeds", "objective", "budget"),
        "Where": ("devices", "partition_cpu", "shape", "platform"),
        "Output": ("output", "resume", "as_json"),
    },
    "train": {
        "What": ("problems", "updates", "unseen", "seed"),
        "Output": ("output", "resume", "as_json"),
        "For researchers": ("changes",),
    },
}
"""Parameters that the help of a command lists, by group; the command accepts its other options without listing them."""

MORE = (
    "The reference lists more options, for researchers. Give them as --NAME VALUE, --set NAME=VALUE, or in a file "
    "as @FILE."
)


_PER_DEVICE = "a property of a device: --devices 'CPU[{}=VALUE]', or several devices to compare"
BENCHMARK_APP: dict[str, str] = {
    "-api": "nothing: latency is measured by one request at a time, throughput by several",
    "-b": "--shape, which has the batch: --shape 8,3,224,224",
    "-c": "hsdag --extension FILE bench MODEL",
    "-cache_dir": _PER_DEVICE.format("CACHE_DIR"),
    "-dump_config": "nothing: --json prints what was measured",
    "-exec_graph_path": "hsdag profile MODEL",
    "-infer_precision": _PER_DEVICE.format("INFERENCE_PRECISION_HINT"),
    "-json_stats": "--json",
    "-layout": "--shape, or an .npz file: --input FILE",
    "-load_config": _PER_DEVICE.format("KEY"),
    "-nstreams": _PER_DEVICE.format("NUM_STREAMS"),
    "-nthreads": _PER_DEVICE.format("INFERENCE_NUM_THREADS"),
    "-pc": "hsdag profile MODEL, which has the time of every op",
    "-pcseq": "hsdag profile MODEL, which has the time of every op",
    "-pcsort": "hsdag profile MODEL, which has the time of every op",
    "-pin": _PER_DEVICE.format("ENABLE_CPU_PINNING"),
    "-report_folder": "--json > FILE",
    "-report_type": "--json",
}
"""Options of benchmark_app that 'hsdag bench' lacks, and what to use instead."""


class Command(TyperCommand):
    """Command with grouped help, which also reads options from ``--set NAME=VALUE`` and from files, ``@FILE``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the parameters, group by group."""
        groups = GROUPS.get(self.name or "")
        if groups is None:
            super().format_options(ctx, formatter)
            return
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        arguments = {"Arguments": tuple(param.name for param in self.params if param.param_type_name == "argument")}
        for title, names in {**arguments, **groups}.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names])
        if len(self.params) > sum(map(len, [*arguments.values(), *groups.values()])):
            formatter.write_paragraph()
            formatter.write_text(MORE)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse words, after replacing ``@FILE`` by its words and ``--set OPTION=VALUE`` by that option."""
        flags = {
            flag.removeprefix("--").replace("-", "_"): (flag, getattr(param, "is_flag", False))
            for param in self.params
            for flag in param.opts
            if flag.startswith("--")
        }
        if self.name == "bench":
            for word in args:
                if (instead := BENCHMARK_APP.get(word.partition("=")[0].replace("--", "-", 1))) is not None:
                    raise OptionError(f"{word} is an option of benchmark_app; in its place there is {instead}")
        words: list[str] = []
        self.names = sorted(flags)
        for word in _with_files(args):
            name, is_given, value = word.partition("=")
            if words[-1:] == ["--set"] and is_given and name in flags:
                flag, is_flag = flags[name]
                words.pop()
                words += ([flag] if value.lower() in ("true", "1") else []) if is_flag else [flag, value]
            else:
                words.append(word)
        return super().parse_args(ctx, words)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if ``--set`` names neither an option nor a hyper-parameter, list both."""
        try:
            return super().invoke(ctx)
        except HyperParameterError as error:
            raise OptionError(f"{error}; or one of the options {', '.join(self.names)}") from error


def _with_files(words: list[str]) -> list[str]:
    """Replace each ``@FILE`` by its words. Raises OptionError for a file that cannot be parsed."""
    from hsdag.base.files import read_text  # imported here because it loads pydantic

    expanded: list[str] = []
    for word in words:
        if not word.startswith("@"):
            expanded.append(word)
            continue
        lexer = shlex.shlex(read_text(Path(word[1:])), posix=True)
        lexer.whitespace_split, lexer.escape = True, ""  # backslashes belong to patterns and Windows paths
        try:
            expanded += lexer
        except ValueError as error:
            raise OptionError(f"{word[1:]} is no file of options: {error}") from error
    return expanded


_Command = TypeVar("_Command", bound=Callable[..., None])


def takes(call: Callable[..., object]) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command those parameters of an API function that have a type here.

    They become keyword parameters with the defaults of the API function.
    """

    def with_parameters(command: _Command) -> _Command:
        declared = [
            param for param in signature(command, eval_str=True).parameters.values() if param.kind != param.VAR_KEYWORD
        ]
        names = [param.name for param in declared]
        shared = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, default in defaults(call).items()
            if name not in names and (kind := _type(name)) is not None
        ]
        parameters = [param.replace(kind=Parameter.KEYWORD_ONLY) for param in [*declared[:1], *shared, *declared[1:]]]
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {param.name: param.annotation for param in parameters}
        return command

    return with_parameters


def defaults(call: Callable[..., object]) -> dict[str, Any]:
    """Return the default values of an API function's parameters by name, without its required parameters."""
    return {
        param.name: param.default for param in signature(call).parameters.values() if param.default is not param.empty
    }


def _type(parameter: str) -> Any:
    """Return the option type of an API function's parameter, or None for one that commands do not take."""
    return _TAKEN[parameter](parameter) if parameter in _TAKEN else globals().get(parameter.title().replace("_", ""))

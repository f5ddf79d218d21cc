"""Options of commands, as types of their parameters; a command takes those of the API call that it makes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from typer import Argument, Option
from typer.core import TyperCommand

from hsdag.ir.errors import HyperParameterError, OptionError

Model: TypeAlias = Annotated[Path, Argument(help="A model file: OpenVINO IR, ONNX, or anything OpenVINO reads.")]
ProblemFile: TypeAlias = Annotated[Path, Argument(help="A problem file: ops with times per device, edges, links.")]
Json: TypeAlias = Annotated[bool, Option("--json", help="Print one JSON document on stdout.")]
Shape: TypeAlias = Annotated[
    str | None, Option("--shape", "-shape", help="Fix input shapes: NAME[1,3,224,224],... or 1,3,224,224.")
]
DataShape: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--data-shape",
        "-data_shape",
        metavar="[BEFORE>]TIMED[@WEIGHT]",
        help="Shapes of typical data, for inputs that stay dynamic: NAME[1,128],...; what runs untimed before, and a "
        "weight. Repeatable.",
    ),
]
Tokens: TypeAlias = Annotated[
    str | None,
    Option(
        "--tokens",
        metavar="NEW[+PAST][@WEIGHT],...",
        help="The same for a language model: 128,1+1024 is 128 tokens, and one after 1024.",
    ),
]
Inputs: TypeAlias = Annotated[
    Path | None, Option("--input", "-i", help="An .npz file with one array per input. Default: random.")
]
Devices: TypeAlias = Annotated[
    str | None,
    Option(
        "--devices",
        "-d",
        help="Devices: CPU,GPU.0[KEY=VALUE;...] or NAME=PLUGIN[KEY=VALUE;...]. Default: all.",
    ),
]
PartitionCpu: TypeAlias = Annotated[int | None, Option("--partition-cpu", help="Divide the CPU into N devices.")]
Platform: TypeAlias = Annotated[
    str | None,
    Option("--platform", help="Costs of a platform, by name or as a .toml file: analytic, nothing is measured."),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other option, or a hyper-parameter of the method (a wrong name lists them).",
    ),
]
Trace: TypeAlias = Annotated[
    Path | None, Option("--trace", help="Write the timeline as a trace for Perfetto: FILE.json.")
]
Workers: TypeAlias = Annotated[
    str | None,
    Option(
        "--workers",
        metavar="WORKERS",
        help="Compute parts of the work in N processes (local:N), or on a Ray cluster (ray, or ray://HOST:PORT). "
        "Default: in this process.",
    ),
]


def _option(kind: Any, text: str, *flags: str, **more: Any) -> Callable[[str], Any]:
    return lambda name: Annotated[kind, Option(*(flags or [f"--{name.replace('_', '-')}"]), help=text, **more)]


_TAKEN: dict[str, Callable[[str], Any]] = {
    "method": _option(str, "For researchers: the search method; an unknown name lists the choices."),
    "preset": _option(str, "For researchers: a preset of the method's hyper-parameters, such as paper for hsdag."),
    "init": _option(
        Path | None, "Begin with a policy of 'hsdag train'; for auto or the policy's own method.", metavar="POLICY"
    ),
    "start": _option(
        Path | None, "Start from this placement; it is replaced only by one that proves faster.", metavar="PLACEMENT"
    ),
    "executor": _option(
        str,
        "For researchers: what runs the placed model: hetero, work-conserving or cuda; auto compares the first two.",
    ),
    "objective": _option(str, "latency, throughput, memory, energy, or a weighted sum: latency=1,memory=0.5."),
    "execution": _option(str, "work-conserving, or sequential like HETERO."),
    "order": _option(
        str | None, "priority, fifo, critical-path, depth-first or random. Default: priority where given, else fifo."
    ),
    "links": _option(str, "independent, egress or channel; blocking for throughput."),
    "reward": _option(str | None, "For researchers: measured, simulated or hybrid (the default)."),
    "fresh": _option(bool, "Profile again and ignore the cache."),
    "budget": _option(str, "Time for all of it: 10s, 5m, 1h."),
    "max_evaluations": _option(int | None, "End after N placements, those that are measured for 'hsdag place'."),
    "candidate_limit": _option(str, "Time limit for one candidate."),
    "seed": _option(int, "Seed of the search, of random inputs and of --order random."),
    "resume": _option(bool, "Continue the search in the run folder."),
    "reference": _option(str, "What outputs are compared with: cpu or op-by-op."),
    "max_difference": _option(
        float | None, "Limit of the answer: difference of outputs from the reference's, over their largest value."
    ),
    "memory": _option(
        str | None,
        "Memory for weights, state and results: GPU.0=8GB,GPU.1=512MiB. Default: what devices, or problem files, say.",
        metavar="DEVICE=SIZE,...",
    ),
    "pins": _option(
        list[str] | None,
        "Ops whose whole name matches stay on that device. Repeatable.",
        "--pin",
        metavar="REGEX=DEVICE",
    ),
    "infer_precision": _option(
        str | None,
        "Precision that devices compute in: f32, f16 or bf16; any tries lower ones, too, and keeps those that agree.",
        "--infer-precision",
        "-infer_precision",
        metavar="PRECISION",
    ),
}
"""Options of API calls that no other command has."""

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
"""Parameters that the help of a command shows, by group; its other options are for researchers, and work as well."""

MORE = "The reference lists more options, for researchers: --NAME VALUE, --set NAME=VALUE, or a file of them, @FILE."


_PER_DEVICE = "a property of a device: --devices 'CPU[{}=VALUE]', or several devices to compare"
BENCHMARK_APP: dict[str, str] = {
    "-api": "leave it out: latency is measured by one request at a time, throughput by several",
    "-b": "--shape has the batch: --shape 8,3,224,224",
    "-c": "hsdag --extension FILE bench MODEL",
    "-cache_dir": _PER_DEVICE.format("CACHE_DIR"),
    "-dump_config": "leave it out: --json prints what was measured",
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
"""Options of benchmark_app that 'hsdag bench' does not have, and what does the same."""


class Command(TyperCommand):
    """A command whose help has groups, and which reads options from ``--set NAME=VALUE`` and from ``@FILE``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the parameters, group by group."""
        groups = GROUPS.get(self.name or "")
        if groups is None:
            super().format_options(ctx, formatter)
            return
        records = {each.name: each.get_help_record(ctx) for each in self.get_params(ctx)}
        arguments = {"Arguments": tuple(each.name for each in self.params if each.param_type_name == "argument")}
        for title, names in {**arguments, **groups}.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names])
        if len(self.params) > sum(map(len, [*arguments.values(), *groups.values()])):
            formatter.write_paragraph()
            formatter.write_text(MORE)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse words, after those of files, and the options of this command that ``--set`` gives."""
        flags = {
            flag.removeprefix("--").replace("-", "_"): (flag, getattr(each, "is_flag", False))
            for each in self.params
            for flag in each.opts
            if flag.startswith("--")
        }
        if self.name == "bench":
            for word in args:
                if (instead := BENCHMARK_APP.get(word.partition("=")[0].replace("--", "-", 1))) is not None:
                    raise OptionError(f"{word} is an option of benchmark_app; for hsdag bench {instead}")
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
        """Run the command; where ``--set`` gives a name that is neither, options are listed beside hyper-parameters."""
        try:
            return super().invoke(ctx)
        except HyperParameterError as error:
            raise OptionError(f"{error}; or one of the options {', '.join(self.names)}") from error


def _with_files(words: list[str]) -> list[str]:
    """Words, those of ``@FILE`` in its place. Raises OptionError for a file that is none."""
    from hsdag.ir.files import read_text  # only here: it loads pydantic

    found: list[str] = []
    for word in words:
        if not word.startswith("@"):
            found.append(word)
            continue
        lexer = shlex.shlex(read_text(Path(word[1:])), posix=True)
        lexer.whitespace_split, lexer.escape = True, ""  # backslashes are of patterns and of Windows' paths
        try:
            found += lexer
        except ValueError as error:
            raise OptionError(f"{word[1:]} is no file of options: {error}") from error
    return found


_Command = TypeVar("_Command", bound=Callable[..., None])


def takes(call: Callable[..., object]) -> Callable[[_Command], _Command]:
    """Give a command the parameters of an API call that have a type here, with their defaults, as keywords."""

    def with_parameters(command: _Command) -> _Command:
        own = [each for each in signature(command, eval_str=True).parameters.values() if each.kind != each.VAR_KEYWORD]
        names = [each.name for each in own]
        shared = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, default in defaults(call).items()
            if name not in names and (kind := _type(name)) is not None
        ]
        found = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in [*own[:1], *shared, *own[1:]]]
        command.__signature__ = Signature(found)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in found}
        return command

    return with_parameters


def defaults(call: Callable[..., object]) -> dict[str, Any]:
    """The defaults of the parameters of an API call by name; those that it needs are left out."""
    return {each.name: each.default for each in signature(call).parameters.values() if each.default is not each.empty}


def _type(parameter: str) -> Any:
    """The type of a parameter of an API call; None for one that commands do not take."""
    return _TAKEN[parameter](parameter) if parameter in _TAKEN else globals().get(parameter.title().replace("_", ""))

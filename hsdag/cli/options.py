"""Options of commands, as types of their parameters; a command takes those of the API call that it makes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from typer import Argument, Option

from hsdag.cli import completion

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
Memory: TypeAlias = Annotated[
    str | None,
    Option(
        "--memory",
        metavar="DEVICE=SIZE,...",
        help="Memory for weights, state and results: GPU.0=8GB,GPU.1=512MiB. Default: what devices say.",
    ),
]
Pins: TypeAlias = Annotated[
    list[str] | None,
    Option("--pin", metavar="REGEX=DEVICE", help="Ops whose whole name matches stay on that device. Repeatable."),
]
InferPrecision: TypeAlias = Annotated[
    str | None,
    Option(
        "--infer-precision",
        "-infer_precision",
        metavar="[DEVICE:]PRECISION,...",
        help="Precision that devices compute in, as benchmark_app takes it: CPU:bf16,GPU.0:f32, or one for all.",
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
Method: TypeAlias = Annotated[
    str,
    Option("--method", autocompletion=completion.methods, help="The search method; an unknown name lists the choices."),
]
Preset: TypeAlias = Annotated[
    str, Option("--preset", help="A preset of the method's hyper-parameters, such as paper for hsdag.")
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the method; a wrong name lists them. Repeatable."),
]
Init: TypeAlias = Annotated[
    Path | None,
    Option(
        "--init", metavar="POLICY", help="Begin with a policy of 'hsdag train'; for auto or the policy's own method."
    ),
]
Start: TypeAlias = Annotated[
    Path | None,
    Option("--start", metavar="PLACEMENT", help="Begin with a placement; the answer is never found to be slower."),
]
Objective: TypeAlias = Annotated[
    str,
    Option(
        "--objective",
        autocompletion=completion.objectives,
        help="latency, throughput, memory, energy, or a weighted sum: latency=1,memory=0.5.",
    ),
]
Execution: TypeAlias = Annotated[
    str,
    Option("--execution", autocompletion=completion.executions, help="work-conserving, or sequential like HETERO."),
]
Order: TypeAlias = Annotated[
    str | None,
    Option(
        "--order",
        autocompletion=completion.orders,
        help="priority, fifo, critical-path, depth-first or random. Default: priority where given, else fifo.",
    ),
]
Links: TypeAlias = Annotated[
    str,
    Option("--links", autocompletion=completion.links, help="independent, egress or channel; blocking for throughput."),
]
Trace: TypeAlias = Annotated[
    Path | None, Option("--trace", help="Write the timeline as a trace for Perfetto: FILE.json.")
]
Gantt: TypeAlias = Annotated[Path | None, Option("--gantt", help="Draw the timeline: FILE.png or FILE.svg.")]
Workers: TypeAlias = Annotated[
    str | None,
    Option(
        "--workers",
        metavar="WORKERS",
        help="Compute parts of the work in N processes (local:N), or on a Ray cluster (ray, or ray://HOST:PORT). "
        "Default: in this process.",
    ),
]
Curve: TypeAlias = Annotated[
    Path | None, Option("--curve", help="Draw the learning curve of a method that learns: FILE.png or FILE.svg.")
]
Executor: TypeAlias = Annotated[
    str,
    Option(
        "--executor",
        autocompletion=completion.executors,
        help="What runs the placed model: hetero, work-conserving or cuda.",
    ),
]
Reward: TypeAlias = Annotated[
    str | None,
    Option("--reward", autocompletion=completion.rewards, help="measured, simulated or hybrid (the default)."),
]
Fresh: TypeAlias = Annotated[bool, Option("--fresh", help="Profile again and ignore the cache.")]
Budget: TypeAlias = Annotated[
    str, Option("--budget", help="Search time: 10s, 5m, 1h. The comparison of 'hsdag place' comes on top.")
]
MaxEvaluations: TypeAlias = Annotated[
    int | None, Option("--max-evaluations", help="End after N placements, those that are measured for 'hsdag place'.")
]
CandidateLimit: TypeAlias = Annotated[str, Option("--candidate-limit", help="Time limit for one candidate.")]
Seed: TypeAlias = Annotated[int, Option("--seed", help="Seed of the search, of random inputs and of --order random.")]
Resume: TypeAlias = Annotated[bool, Option("--resume", help="Continue the search in the run folder.")]
Reference: TypeAlias = Annotated[
    str,
    Option(
        "--reference",
        autocompletion=completion.references,
        help="What outputs are compared with: cpu, onnxruntime (ONNX files), or op-by-op.",
    ),
]
MaxDifference: TypeAlias = Annotated[
    float | None,
    Option(
        "--max-difference",
        help="Limit of the answer: difference of outputs from the reference's, over their largest value.",
    ),
]
Noise: TypeAlias = Annotated[
    float, Option("--noise", help="Multiply durations by exp(SIGMA z), z standard normal, drawn from --seed.")
]
Runs: TypeAlias = Annotated[int, Option("--runs", help="With --noise: number of runs, with seeds from --seed on.")]

_Command = TypeVar("_Command", bound=Callable[..., None])


def takes(call: Callable[..., object]) -> Callable[[_Command], _Command]:
    """Give a command the parameters of an API call that have a type here, with their defaults, as keywords."""

    def with_parameters(command: _Command) -> _Command:
        own = [each for each in signature(command, eval_str=True).parameters.values() if each.kind != each.VAR_KEYWORD]
        names = [each.name for each in own]
        shared = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=globals()[_type_name(name)])
            for name, default in defaults(call).items()
            if name not in names and _type_name(name) in globals()
        ]
        found = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in [*own[:1], *shared, *own[1:]]]
        command.__signature__ = Signature(found)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in found}
        return command

    return with_parameters


def defaults(call: Callable[..., object]) -> dict[str, Any]:
    """The defaults of the parameters of an API call by name; those that it needs are left out."""
    return {each.name: each.default for each in signature(call).parameters.values() if each.default is not each.empty}


def flag(name: str) -> str:
    """The option by which a parameter is given."""
    return str(globals()[_type_name(name)].__metadata__[0].default)


def _type_name(parameter: str) -> str:
    return parameter.title().replace("_", "")

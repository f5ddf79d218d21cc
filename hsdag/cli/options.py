"""Options that several commands take, as types of their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from typer import Argument, Option

from hsdag.cli import completion

Model: TypeAlias = Annotated[Path, Argument(help="A model file: OpenVINO IR, ONNX, or anything OpenVINO reads.")]
ProblemFile: TypeAlias = Annotated[Path, Argument(help="A problem file: ops with times per device, edges, links.")]
Json: TypeAlias = Annotated[bool, Option("--json", help="Print one JSON document on stdout.")]
Shape: TypeAlias = Annotated[
    str | None, Option("--shape", "-shape", help="Fix input shapes: NAME[1,3,224,224],... or 1,3,224,224.")
]
DataShapes: TypeAlias = Annotated[
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

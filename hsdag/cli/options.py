"""Options that several commands take, as types of their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from typer import Argument, Option

if TYPE_CHECKING:
    from hsdag.runtime.timeline.timeline import Timeline

Model: TypeAlias = Annotated[Path, Argument(help="A model file: OpenVINO IR, ONNX, or anything OpenVINO reads.")]
ProblemFile: TypeAlias = Annotated[Path, Argument(help="A problem file: ops with times per device, edges, links.")]
Json: TypeAlias = Annotated[bool, Option("--json", help="Print one JSON document on stdout.")]
Shape: TypeAlias = Annotated[
    str | None, Option("--shape", help="Fix input shapes: NAME[1,3,224,224],... or 1,3,224,224.")
]
Inputs: TypeAlias = Annotated[
    Path | None, Option("--input", "-i", help="An .npz file with one array per input. Default: random.")
]
Devices: TypeAlias = Annotated[
    str | None,
    Option("--devices", "-d", help="Devices: CPU,GPU.0,... or NAME=PLUGIN[KEY=VALUE;...]. Default: all that load."),
]
PartitionCpu: TypeAlias = Annotated[int | None, Option("--partition-cpu", help="Divide the CPU into N devices.")]
Method: TypeAlias = Annotated[str, Option("--method", help="The search method; an unknown name lists the choices.")]
Preset: TypeAlias = Annotated[
    str, Option("--preset", help="A preset of the method's hyper-parameters, such as paper for hsdag.")
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the method; a wrong name lists them. Repeatable."),
]
Objective: TypeAlias = Annotated[str, Option("--objective", help="latency or throughput.")]
Execution: TypeAlias = Annotated[str, Option("--execution", help="work-conserving, or sequential like HETERO.")]
Order: TypeAlias = Annotated[
    str | None,
    Option(
        "--order",
        help="priority, fifo, critical-path, depth-first or random. Default: priority where given, else fifo.",
    ),
]
Links: TypeAlias = Annotated[str, Option("--links", help="independent, egress or channel; blocking for throughput.")]
Trace: TypeAlias = Annotated[
    Path | None, Option("--trace", help="Write the timeline as a trace for Perfetto: FILE.json.")
]
Gantt: TypeAlias = Annotated[Path | None, Option("--gantt", help="Draw the timeline: FILE.png or FILE.svg.")]


def check_files(outputs: list[Path | None], inputs: list[Path], gantt: Path | None) -> None:
    """Raise a HsdagError for a file that could not be written in the end, before any work is done for it."""
    from hsdag.commands.simulate import check_outputs
    from hsdag.reports import check_picture
    from hsdag.search.options import check_writable

    named = [path for path in outputs if path is not None]
    for path in named:
        check_writable(path)
    check_outputs(named, inputs)
    if gantt is not None:
        check_picture(gantt)


def write_timeline(timeline: Timeline, trace: Path | None, gantt: Path | None) -> None:
    """Write the requested files."""
    from hsdag.reports import write_gantt
    from hsdag.runtime.timeline.trace import write_trace

    if trace is not None:
        write_trace(timeline, trace)
    if gantt is not None:
        write_gantt(timeline, gantt)

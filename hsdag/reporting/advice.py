"""What a report advises: how to deploy an answer, or the command that goes on with the search."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hsdag.ir.placement.placement import DeviceRecord
from hsdag.placing.kept_run import KeptRun
from hsdag.reporting.html.content import Advice
from hsdag.search.run_folder import RunRecord


def advice_of(run: KeptRun) -> tuple[Advice, ...]:
    """What to do with the answer, or to come to one."""
    placement, result = run.placement, run.result
    model = run.record.model_path or (result and result.model_path) or "MODEL"
    if placement is None or result is None or result.interrupted:
        text = "The search can go on where it stopped"
        if run.record.arguments is None:
            return (Advice(f"{text}: begin it again as before, with resume and its run folder, {run.path}."),)
        return (Advice(f"{text}.", command_of(run.record.arguments, model, "--resume", "--run", str(run.path))),)
    used = sorted(placement.used_devices)
    if len(used) == 1:
        text = f"Run the model on {used[0]} as it is; there is nothing to install. A longer search may find more."
        longer = ("--budget", f"{4 * result.budget_s:.0f}s")
        arguments = run.record.arguments
        return (Advice(text, None if arguments is None else command_of(arguments, model, *longer)),)
    beside = result.placement_file or str(run.path.with_suffix(".json"))
    again = shlex.join(["hsdag", "bench", model, "--placement", beside])
    check = Advice("See on the machine that will serve whether it is as fast there:", again)
    if placement.executor == "cuda":
        return (check,)
    call = f"compiled = hsdag.compile_work_conserving({model!r}, placement)"
    if placement.executor == "hetero":
        call = f"core = openvino.Core()\ncompiled = placement.compile(core, core.read_model({model!r}))"
    code = f"placement = hsdag.Placement.load({beside!r})\n{call}"
    return (Advice("Deploy the placement, in Python or by hsdag export:", code), check)


def command_of(arguments: Sequence[str], model: str, *more: str) -> str:
    """The command of a search that was begun with these arguments."""
    return shlex.join(["hsdag", "place", model, *arguments, *more])


def limit_options(record: RunRecord) -> list[tuple[str, str]]:
    """What the answer was limited to, as options of ``hsdag place``."""
    memory = ",".join(f"{name}={size:.17g}" for name, size in record.memory_bytes.items())
    found = [("--memory", memory)] if memory else []
    found += [("--pin", pin) for pin in record.pins]
    if record.max_difference is not None:
        found.append(("--max-difference", f"{record.max_difference:.17g}"))
        found += [("--reference", record.reference)] if record.reference not in (None, "cpu") else []
    return found + [("--data-shape", text) for text in record.data_shapes]


def device_option(device: DeviceRecord) -> str:
    """A device as ``--devices`` takes it."""
    properties = ";".join(f"{name}={value}" for name, value in device.properties.items())
    own = f"{device.plugin}[{properties}]" if properties else device.plugin
    return own if own == device.name else f"{device.name}={own}"

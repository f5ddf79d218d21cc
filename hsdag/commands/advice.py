"""What a report advises: how to deploy an answer, or the command that goes on with the search."""

from __future__ import annotations

import shlex

from hsdag.ir.placement import DeviceRecord
from hsdag.placers.registry import find_preset
from hsdag.reports.content import Advice
from hsdag.search.kept_run import KeptRun
from hsdag.search.run_folder import RunRecord

DEFAULTS = {"--method": "auto", "--preset": "default", "--objective": "latency", "--executor": "hetero", "--seed": "0"}


def advice_of(run: KeptRun) -> tuple[Advice, ...]:
    """What to do with the answer, or to come to one."""
    placement, result = run.placement, run.result
    model = (result and result.model_path) or "MODEL"
    beside = run.path.with_suffix(".json")
    if placement is None or result is None or result.interrupted:
        again = f"{command_of(run.record, model)} --resume --run {shlex.quote(str(run.path))}"
        return (Advice("The search can go on where it stopped.", again),)
    used = sorted(placement.used_devices)
    if len(used) == 1:
        text = f"Run the model on {used[0]} as it is; there is nothing to install. A longer search may find more."
        return (Advice(text, f"{command_of(run.record, model)} --budget {4 * result.budget_s:.0f}s"),)
    again = f"hsdag bench {shlex.quote(model)} --placement {shlex.quote(str(beside))}"
    check = Advice("See on the machine that will serve whether it is as fast there:", again)
    if placement.executor == "cuda":
        return (check,)
    call = f"compiled = hsdag.compile_work_conserving({model!r}, placement)"
    if placement.executor == "hetero":
        call = f"core = openvino.Core()\ncompiled = placement.compile(core, core.read_model({model!r}))"
    code = f"placement = hsdag.Placement.load({str(beside)!r})\n{call}"
    return (Advice("Deploy the placement, in Python or by hsdag export:", code), check)


def command_of(record: RunRecord, model: str) -> str:
    """The command line of a search like this one, without its budget and the shapes of its inputs."""
    devices = ",".join(device_option(device) for device in record.devices if device.name in record.placed)
    chosen = [(name, str(getattr(record, name.removeprefix("--")))) for name in DEFAULTS]
    options = [("--devices", devices), *(each for each in chosen if each[1] != DEFAULTS[each[0]])]
    if record.reward != find_preset(record.method, record.preset).reward:
        options.append(("--reward", record.reward))
    options += [("--set", f"{name}={value}") for name, value in record.changes.items()]
    words = [word for option in [*options, *limit_options(record)] for word in option]
    return shlex.join(["hsdag", "place", model, *words])


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

"""Write a run folder as one HTML page (``hsdag report``), with what to do next with its answer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hsdag.base.errors import checked
from hsdag.base.files import check_writable, write_atomically
from hsdag.base.host import command_line
from hsdag.commands.place.records import placements_were
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RunFolder
from hsdag.ir.placement.placement import Record

UNFINISHED = "The search has not come to its end: this is what it kept."


class ReportResult(Record):
    """The files of a report, and its first sentence."""

    files: tuple[Path, ...]
    sentence: str


@checked
def report(run: str | Path | PlaceResult, output: str | Path | None = None) -> ReportResult:
    """Write a search as one HTML file, by default next to the run folder under its name, as ``hsdag report`` does.

    The page needs the extra ``report``. Raises SearchError and FileFormatError if there is no such run, OptionError if
    the extra is missing, and OutputError if the file cannot be written.

    Args:
        run: A result of ``place``, a run folder (also of an unfinished search), or the placement file next to it.
    """
    from hsdag.commands.report.page import report_html

    if output is not None:
        check_writable(Path(output))
    kept = RunFolder.load(run)
    path = kept.path.with_suffix(".html") if output is None else Path(output)
    write_atomically(path, report_html(kept).encode())
    return ReportResult(files=(path,), sentence=sentence_of(kept))


def sentence_of(run: RunFolder) -> str:
    """Return the answer in a sentence, or the state of an unfinished search."""
    if run.result is not None:
        return run.result.sentence
    done = [event.score.value for event in run.events if event.score.failure is None]
    if not done:
        return f"{UNFINISHED} Nothing has been measured yet."
    best = run.problem.objective.text(min(done))
    return f"{UNFINISHED} {placements_were(len(done))} measured, the best at {best}; none is proven to be faster yet."


class NextStep(NamedTuple):
    """What to do next, in a sentence, and the command or code for it."""

    text: str
    code: str | None = None


def next_steps_of(run: RunFolder) -> tuple[NextStep, ...]:
    """Return how to deploy the answer, or how to continue the search."""
    placement, result, arguments = run.placement, run.result, run.record.arguments
    model = run.record.model_path or (None if result is None else result.model_path)

    def command(*more: str) -> str | None:
        """Return the command of the search with further options, or None if it is not known."""
        if arguments is None or model is None:
            return None
        words = list(arguments)
        if more[0] in words:
            begin = words.index(more[0])
            del words[begin : begin + 2]
        return command_line(["hsdag", "place", model, *words, *more])

    if placement is None or result is None or result.interrupted:
        text = "The search can go on where it stopped"
        words = command("--resume", "--run", str(run.path))
        if words is None:
            return (NextStep(f"{text}: begin it again as before, with resume and its run folder, {run.path}."),)
        return (NextStep(f"{text}.", words),)
    used = sorted(placement.used_devices)
    if len(used) == 1:
        use = NextStep(
            f"Run the whole model on {used[0]}:", result.setting.removeprefix("To use it in Python: ") or None
        )
        longer_s = result.wanted_budget_s or 4 * result.budget_s
        return (use, NextStep("A longer search may find more.", command("--budget", f"{longer_s:.0f}s")))
    beside = result.placement_file or str(run.path.with_suffix(".json"))
    model = model or "model.xml"
    again = command_line(["hsdag", "bench", model, "--placement", beside])
    check = NextStep("See on the machine that will serve whether it is as fast there:", again)
    if placement.executor == "cuda":
        return (check,)
    code = f"compiled = hsdag.compile_model({model!r}, {beside!r})"
    return (NextStep("Deploy the placement, in Python or by hsdag export:", code), check)


def environment_of(run: RunFolder) -> dict[str, str]:
    """Return the settings of the search, devices, versions and hardware, by name."""
    record, result = run.record, run.result
    changes = ", ".join(f"{name}={value}" for name, value in record.changes.items())
    facts = {
        "method": f"{record.method}, preset {record.preset}{', ' + changes if changes else ''}",
        "reward": record.reward,
        "seed": str(record.seed),
        "model": f"{record.model.name}, {run.graph.num_ops} ops, inputs {record.model.inputs_text}",
        "placement units": str(record.num_units),
        "run folder": str(run.path),
    }
    facts["options"] = "" if record.arguments is None else command_line(record.arguments)
    if result is not None:
        facts |= {"budget": f"{result.budget_s:g} s", "finished": result.finished}
    for device in record.devices:
        properties = ";".join(f"{name}={value}" for name, value in device.properties.items())
        facts[f"{device.name} is"] = device.plugin + (f"[{properties}]" if properties else "")
    return {name: value for name, value in facts.items() if value} | (dict(result.environment) if result else {})

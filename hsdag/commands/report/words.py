"""Words of a report: the answer in a sentence, what to do next with it, and the settings of the search."""

from __future__ import annotations

from typing import NamedTuple

from hsdag.base.host import command_line
from hsdag.commands.place.records import placements_were
from hsdag.commands.place.run_folder import RunFolder

UNFINISHED = "The search has not come to its end: this is what it kept."


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

"""Whether every op of OpenVINO's opsets computes what it should, however it is placed and divided.

Each op of every_op_table.py, alone and between two products, is saved and read again, then placed on two CPU devices
(every co-location set on the other one in turn) under HETERO and hsdag's executor, and divided along every axis that a
rule allows, in f32 and bf16. Divided models are saved and read again, too; and ops alone of whose inputs one axis is of
unknown size are divided. Outputs are compared with those of the whole model on the CPU in f32. They may differ by 1e-4
of the largest in f32, or by a rounding of f16 where a model asks for that, in bf16 by 1.5 times what the whole model
differs by in bf16, or as much as they do for inputs that differ by a rounding, for some ops jump. The counts of a
function of the opsets are a line of --log; those that are there are not tried again.

Usage: python benchmarks/every_op.py [--ops NAME ...] [--log FILE]
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import every_op_table as table
import numpy as np
import openvino as ov
from machine import options
from moved_inputs import ROUNDING, moved_inputs

from hsdag.base.errors import HsdagError, last_line
from hsdag.ir.device import DeviceSpec
from hsdag.ir.elements import array_of
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.partition import Partition
from hsdag.ir.graph.state import computed_once
from hsdag.ir.placement.divided import divided, sharded_fields
from hsdag.ir.placement.placement import Placement
from hsdag.ir.shards.regions import Region
from hsdag.ir.shards.rewrite import shapes_of
from hsdag.runtime.executor.compiling import compile_placed
from hsdag.runtime.measuring.differences import output_difference
from tests.placements import by_hand

PRECISIONS = ("f32", "bf16")
LIMIT_F32, LIMIT_F16, ROUNDING_BF16, SLACK = 1e-4, 2.0**-10, 0.01, 1.5
NUM_MOVED = 3
"""Inputs that differ by a rounding, to see whether an op jumps."""
LIMIT_S = 1500
"""After which the process of a function is given up."""

Arrays = list[np.ndarray]


@cache
def devices(precision: str) -> tuple[DeviceSpec, ...]:
    """Two CPU devices of one thread."""
    hint = f"INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT={precision}"
    return tuple(DeviceSpec.parse(f"{side}_{precision}=CPU[{hint}]") for side in ("LEFT", "RIGHT"))


@cache
def core() -> Any:
    """OpenVINO's, for all."""
    return ov.Core()


def whole(model: ov.Model, inputs: Sequence[Any], precision: str = "f32") -> Arrays:
    """What a model computes on the CPU, in a first inference."""
    compiled = core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    return outputs(compiled, model, inputs)


def outputs(compiled: Any, model: ov.Model, inputs: Sequence[Any]) -> Arrays:
    """Of the first inference, in the order of the model."""
    request = compiled.create_infer_request()
    request.infer(list(inputs))
    return [array_of(request.get_output_tensor(k)) for k in range(len(model.outputs))]


def apart(found: Arrays, wanted: Arrays) -> float:
    """The largest difference over the largest number of an output; infinite where they cannot be compared."""
    try:
        relative = output_difference(found, wanted)["max_relative"]
    except HsdagError:
        return np.inf
    return np.inf if relative is None else relative


def alternating(graph: ComputationGraph, specs: Sequence[DeviceSpec], **fields: Any) -> Placement:
    """Every co-location set on the other of two devices than the one before it."""
    return by_hand(graph, specs, [specs[label % 2].name for label in colocate(graph).sets.labels.tolist()], **fields)


def divisions(model: ov.Model, graph: ComputationGraph, specs: Sequence[DeviceSpec]) -> Iterator[Placement]:
    """Placements that divide the largest regions that end in each op, along each axis, as far as they differ.

    The first divides the first region of every part of the model that nothing connects, and so on. In every other
    placement both devices compute what is not divided.
    """
    shapes = shapes_of(model, graph)
    running = [v for v in range(graph.num_ops) if shapes.runs[v]]
    once = computed_once(graph)
    part_of = Partition.from_pairs(graph.num_ops, graph.edge_src, graph.edge_dst).labels.tolist()
    by_part: dict[int, dict[tuple[object, ...], Region]] = {}
    for last in reversed(running):
        for axis in (None, *range(shapes.op(last).rank if shapes.op(last).outputs else 0)):
            region = shapes.region("hidden" if axis is None else "rows", last, axis)
            known = by_part.setdefault(part_of[last], {})
            grain = None if region is None or (region.ops, region.axes) in known else shapes.grain(region)
            if region is not None and grain is not None:
                size = shapes.extent(region)
                middle = (size // grain + 1) // 2 * grain
                known[region.ops, region.axes] = replace(region, shares={0: (0, middle), 1: (middle, size)})
    names = [spec.name for spec in specs]
    for number, regions in enumerate(itertools.zip_longest(*(each.values() for each in by_part.values()))):
        made = [region for region in regions if region is not None]
        inside = {v for region in made for v in region.ops}
        rest = tuple(v for v in running if v not in inside and not once[v]) if number % 2 else ()
        repeated = [Region("replicated", rest, (None,) * len(rest), {0: (0, 1), 1: (0, 1)})] if rest else []
        fields = sharded_fields([*made, *repeated], [0] * graph.num_ops, graph, names)
        yield alternating(graph, specs, executor="work-conserving").model_copy(update=fields)


@dataclass
class Found:
    """Counts by what came of them, and what is to be told."""

    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def add(self, what: str, text: str = "") -> None:
        """Count one."""
        self.counts[what] += 1
        if text:
            self.told.append(f"{what}: {text}")


Entry = tuple[str, ov.Model, list[Any]]
"""What a model is, the model, and its inputs."""


class Subject:
    """Models side by side as one, saved and read again, and what the CPU computes of it."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.texts = [text for text, *_ in entries]
        self.given = together([model for _, model, _ in entries])
        self.inputs = [array for *_, inputs in entries for array in inputs]
        self._ends = np.cumsum([0, *(len(model.outputs) for _, model, _ in entries)]).tolist()
        self.wanted = {precision: self.parted(whole(self.given, self.inputs, precision)) for precision in PRECISIONS}
        self.model = saved_again(self.given)
        self._moved: dict[str, list[float]] = {}

    def parted(self, found: Arrays) -> list[Arrays]:
        """Outputs by entry."""
        return [found[first:last] for first, last in itertools.pairwise(self._ends)]

    def moved(self, precision: str) -> list[float]:
        """How far outputs of each entry move where inputs move by a rounding."""
        if precision not in self._moved:
            found = [[0.0] * len(self.texts)]
            for inputs in moved_inputs(self.inputs, precision, NUM_MOVED):
                made = self.parted(whole(self.given, inputs, precision))
                found.append([apart(*each) for each in zip(made, self.wanted[precision], strict=True)])
            self._moved[precision] = [2 * max(each) for each in zip(*found, strict=True)]
        return self._moved[precision]

    def judged(self, found: Arrays, precision: str) -> Iterator[tuple[str, bool, float]]:
        """What each entry is, whether its outputs are what they should be, and by how much they are apart."""
        for k, (text, arrays) in enumerate(zip(self.texts, self.parted(found), strict=True)):
            off = apart(arrays, self.wanted["f32"][k])
            nearest, limit = off, LIMIT_F16 if "type=f16" in text else LIMIT_F32  # the CPU leaves out such a conversion
            if precision == "bf16":
                limit = SLACK * apart(self.wanted["bf16"][k], self.wanted["f32"][k]) + ROUNDING_BF16
                nearest = min(off, apart(arrays, self.wanted["bf16"][k]))
            yield text, off <= limit or nearest <= ROUNDING[precision] or nearest <= self.moved(precision)[k], off


def together(models: Sequence[ov.Model]) -> ov.Model:
    """Models side by side as one."""
    results = [result for each in models for result in each.get_results()]
    return ov.Model(results, [parameter for each in models for parameter in each.get_parameters()], "together")


def saved_again(model: ov.Model) -> ov.Model:
    """A model as it is read from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        ov.save_model(model, path, compress_to_fp16=False)
        return core().read_model(path)


def alternatives(subject: Subject) -> Iterator[tuple[str, str, Callable[[], Arrays]]]:
    """Name, precision and what computes the outputs, for every way to compute a model."""
    model, graph = subject.model, graph_of(subject.model)

    def by_hetero(placement: Placement) -> Arrays:
        return outputs(placement.compile(core(), model), model, subject.inputs)

    def by_executor(placement: Placement) -> Arrays:
        with closing(compile_placed(model, placement, core=core())) as compiled:
            found = compiled(list(subject.inputs))
            return [np.array(found[k]) for k in range(len(model.outputs))]

    def from_file(placement: Placement, precision: str) -> Arrays:
        return whole(saved_again(divided(model, placement)[0]), subject.inputs, precision)

    for precision in PRECISIONS:
        specs = devices(precision)
        yield "hetero", precision, partial(by_hetero, alternating(graph, specs))
        yield "executor", precision, partial(by_executor, alternating(graph, specs, executor="work-conserving"))
        for number, placement in enumerate(divisions(model, graph, specs)):
            if number == PRECISIONS.index(precision):
                yield f"divided {number}", precision, partial(by_executor, placement)
            yield f"divided and saved {number}", precision, partial(from_file, placement, precision)


def check(entries: Sequence[Entry], found: Found) -> None:
    """All ways to compute some models; each by itself where one fails."""
    single = Found()
    try:
        subject = Subject(entries)
    except RuntimeError as error:
        if len(entries) > 1:
            halved(entries, found)
        else:
            found.add("not run by OpenVINO", f"{entries[0][0]}: {last_line(error)[:120]}")
        return
    single.counts["models"] += len(entries)
    for how, precision, compute in alternatives(subject):
        where = f"{entries[0][0]}, {how}, {precision}"
        try:
            judged = list(subject.judged(compute(), precision))
            if len(entries) > 1 and not all(is_right for _, is_right, _ in judged):
                halved(entries, found)  # what the CPU reads beyond an input depends on its neighbours
                return
            for text, is_right, off in judged:
                if is_right:
                    single.add(f"{how.rstrip('0123456789 ')} {precision} right")
                else:
                    single.add("wrong", f"{text}, {how}, {precision}: by {off:.2g}")
        except Exception as error:  # noqa: BLE001 - of OpenVINO, or a defect, which is counted
            if len(entries) > 1:
                halved(entries, found)
                return
            kind = "refused" if isinstance(error, HsdagError) else "traceback"
            kind = "failed in OpenVINO" if isinstance(error, RuntimeError) and kind == "traceback" else kind
            single.add(kind, f"{where}: {type(error).__name__}: {last_line(error)[:200]}")
    found.counts.update(single.counts)
    found.told.extend(single.told)


def check_unknown_sizes(text: str, model: ov.Model, inputs: Sequence[Any], found: Found) -> None:
    """All ways to divide a model one axis of whose inputs is of unknown size, each axis in turn."""
    for port, axis in [(k, axis) for k, array in enumerate(inputs) for axis in range(np.ndim(array))]:
        opened = model.clone()
        shape = opened.inputs[port].get_partial_shape()
        shape[axis] = ov.Dimension(-1)
        try:
            opened.reshape({opened.inputs[port]: shape})
            wanted = whole(opened, inputs)
        except RuntimeError:
            continue  # OpenVINO wants to know it
        for number, placement in enumerate(divisions(opened, graph_of(opened), devices("f32"))):
            where = f"{text}, size {axis} of input {port} unknown, divided {number}"
            try:
                off = apart(whole(divided(opened, placement)[0], inputs), wanted)
                found.add(*(("unknown sizes right",) if off <= LIMIT_F32 else ("wrong", f"{where}: by {off:.2g}")))
            except (HsdagError, RuntimeError) as error:
                found.add("wrong", f"{where}: {last_line(error)[:200]}")


def halved(entries: Sequence[Entry], found: Found) -> None:
    """All ways to compute the first half of some models, then the others."""
    middle = len(entries) // 2
    for half in (entries[:middle], entries[middle:]):
        check(half, found)


def entries_of(name: str, found: Found) -> list[Entry]:
    """All models of a function."""
    made: list[Entry] = []
    for case in table.cases(name):
        try:
            models = table.models_of(case)
        except (RuntimeError, TypeError):
            found.add("not made by OpenVINO", case.text)
            continue
        found.add("cases")
        made += [(f"{case.text} {place}", model, table.inputs_of(case)) for place, model in models.items()]
    return made


MOST_TOGETHER = 12
"""Models that are computed as one."""


def in_process(name: str, first: int = 0, last: int = -1) -> Found:
    """Some models of a function, in a process of its own; the halves of them where that dies."""
    command = [sys.executable, __file__, "--ops", name, "--log", "-", "--first", str(first), "--last", str(last)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        why = f"exit status {ran.returncode}: {ran.stderr[-300:]}"
    except subprocess.TimeoutExpired:
        ran, why = None, f"took more than {LIMIT_S} s"
    if ran is not None and ran.returncode == 0:
        record = json.loads(ran.stdout.splitlines()[-1])
        return Found(Counter(record["counts"]), record["told"])
    count = last - first if last >= 0 else len(entries_of(name, Found()))
    if count < 2:
        return Found(Counter(died=1), [f"died: {name}, model {first}: {why}"])
    middle = first + count // 2
    both = in_process(name, first, middle), in_process(name, middle, first + count)
    return Found(both[0].counts + both[1].counts, both[0].told + both[1].told)


def in_turn(names: Sequence[str]) -> Iterator[tuple[str, Found]]:
    """What comes of functions, by a process that goes on with the next one; another one where it dies."""
    left = list(names)
    while left:
        asked = [word for name in left for word in ("--ops", name)]
        with subprocess.Popen(
            [sys.executable, __file__, "--log", "-", *asked], stdout=subprocess.PIPE, text=True
        ) as child:
            for line in child.stdout or ():
                if line.startswith("{"):
                    record = json.loads(line)
                    left.remove(record["op"])
                    yield record["op"], Found(Counter(record["counts"]), record["told"])
        if left:
            name = left.pop(0)
            yield name, in_process(name)


def main() -> None:
    """Try all functions, or those that are asked for, and print the counts."""
    given = options(
        __doc__,
        ops=(list[str](), "functions of the opsets; repeat it for several"),
        log=("every_op.jsonl", "where results are kept"),
        first=(0, "of the models of a function, the first one that is tried"),
        last=(-1, "and the one behind the last"),
    )
    names = list(dict.fromkeys(given.ops or (row[0] for row in table.TABLE)))
    if given.log == "-":
        for name in names:
            found = Found()
            entries = entries_of(name, found)
            entries = entries[given.first : given.last if given.last >= 0 else len(entries)]
            for k in range(0, len(entries), MOST_TOGETHER):
                check(entries[k : k + MOST_TOGETHER], found)
            for text, model, inputs in entries:
                if text.endswith(" alone"):
                    check_unknown_sizes(text, model, inputs, found)
            print(json.dumps({"op": name, "counts": found.counts, "told": found.told}), flush=True)
        return
    log = Path(given.log)
    known = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    done = {record["op"]: record for record in known if record["op"] in names}
    for name, found in in_turn([name for name in names if name not in done]):
        done[name] = {"op": name, "counts": found.counts, "told": found.told}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[name]) + "\n")
        print(name, dict(found.counts), *found.told, sep="\n  ", flush=True)
    total = sum((Counter(record["counts"]) for record in done.values()), Counter())
    untold = set(table.versions()) - {row[0] for row in table.TABLE} - set(table.NOT_IN_TABLE)
    lines = [f"{count:6} {what}" for what, count in sorted(total.items())]
    print(f"\n{len(done)} functions", *lines, *(f"no row: {name}" for name in untold), sep="\n")
    sys.exit(bool(untold) or any(total[what] for what in ("wrong", "traceback", "died")))


if __name__ == "__main__":
    main()

"""Problem files: reading and writing the JSON form of a scheduling problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hsdag.base.errors import FileFormatError
from hsdag.base.files import MODEL_SUFFIXES, first_problem, parse_document, read_text, write_atomically
from hsdag.base.host import command_line
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import FloatArray, IntArray, topological_order
from hsdag.ir.placement.placement import ModelRecord
from hsdag.runtime.problem.schedule_problem import FREE, CostSource, OpLabels, ScheduleProblem

FORMAT_NAME: Literal["hsdag-problem"] = "hsdag-problem"
FORMAT_VERSION: Literal[1] = 1

LARGEST = 1e24
"""Upper bound of all amounts, and of the reciprocal of bandwidths, so that sums stay far from infinity."""

LABELS = {"types": "type", "colocate": "colocate", "meta_ops": "meta_op", "roles": "role", "expressions": "expr"}
"""Columns of OpLabels, and their names in files."""

_Amount = Annotated[float, Field(ge=0, le=LARGEST)]
_Factor = Annotated[float, Field(ge=1, le=LARGEST)]
_Name = Annotated[str, Field(min_length=1)]


def _check_rate(rate: float) -> float:
    if rate < 1 / LARGEST:
        raise ValueError(f"must be at least {1 / LARGEST:g}, not {rate:g}")
    return rate


_Rate = Annotated[float, Field(le=LARGEST), AfterValidator(_check_rate)]


class _FileRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class _FileDevice(_FileRecord):
    name: _Name
    memory_bytes: _Amount | None = None
    launch_s: _Amount = 0.0
    power_w: _Amount | None = None
    plugin: _Name | None = None
    properties: dict[str, str] | None = None


def _with_diagonal(value: float | None, written: Any) -> BeforeValidator:
    """Return a validator that puts a value on the diagonal of a table of pairs of devices, unused in files.

    ``written`` is the type of a table in a file.
    """

    def put(rows: object) -> object:
        if not isinstance(rows, list):
            return rows
        return [[*r[:i], value, *r[i + 1 :]] if isinstance(r, list) and i < len(r) else r for i, r in enumerate(rows)]

    return BeforeValidator(put, json_schema_input_type=written)


class _FileLinks(_FileRecord):
    bandwidth_bytes_per_s: Annotated[list[list[_Rate | None]], _with_diagonal(None, list[list[_Rate | None]])]
    latency_s: Annotated[list[list[_Amount]], _with_diagonal(0.0, list[list[_Amount | None]])]


class _FileOp(_FileRecord):
    name: _Name
    canonical: _Name | None = None
    type: str = ""
    time_s: list[_Amount | None]
    output_bytes: _Amount = 0.0
    weight_bytes: _Amount = 0.0
    colocate: str | None = None
    meta_op: str | None = None
    role: Literal["shard", "reduce"] | None = None
    expr: str | None = None


class _Edge(_FileRecord):
    src: str
    dst: str
    bytes: _Amount | None = None
    port: Annotated[int, Field(ge=0, lt=2**20)] | None = None


class ProblemDocument(_FileRecord):
    format: Literal["hsdag-problem"]
    version: Literal[1]
    name: str
    source: Literal["measured", "calibrated", "analytic", "file"] = "file"
    model: ModelRecord | None = None
    devices: list[_FileDevice] = Field(min_length=1)
    links: _FileLinks | None = None
    op_overhead_s: _Amount = 0.0
    transfer_overhead_s: _Amount = 0.0
    slowdown: Annotated[list[list[_Factor]], _with_diagonal(1.0, list[list[_Factor | None]])] | None = None
    ops: list[_FileOp] = Field(min_length=1)
    edges: list[_Edge] = []


def read_problem(path: str | Path) -> ScheduleProblem:
    """Read the problem in a file. Raises FileFormatError naming file and place, or the commands for a model."""
    if Path(path).suffix in MODEL_SUFFIXES and Path(path).is_file():
        place, profile = (command_line(["hsdag", *words]) for words in (["place", str(path)], ["profile", str(path)]))
        raise FileFormatError(
            f"{path} is a model, and a problem file is expected: {place} places it, {profile} -o costs.json makes a "
            "problem file of it"
        )
    return problem_from_json(read_text(Path(path)), str(path))


def write_problem(problem: ScheduleProblem, path: str | Path) -> None:
    """Write a file atomically. Raises OutputError."""
    write_atomically(Path(path), problem_to_json(problem).encode())


def problem_from_json(text: str, origin: str = "problem") -> ScheduleProblem:
    """Parse the problem in a document. Raises FileFormatError naming ``origin`` and the place inside the document."""
    document = parse_document(text, origin, FORMAT_NAME, (FORMAT_VERSION,))
    try:
        return _problem(ProblemDocument.model_validate(document))
    except ValidationError as error:
        raise FileFormatError(f"{origin}: {first_problem(error)}") from error
    except FileFormatError as error:
        raise FileFormatError(f"{origin}: {error}") from error


def problem_to_json(problem: ScheduleProblem) -> str:
    """Return the document of a problem."""
    ops = [
        _FileOp(
            name=problem.op_names[v],
            canonical=name if (name := problem.canonical_names[v]) != problem.op_names[v] else None,
            time_s=[None if np.isnan(s) else float(s) for s in problem.time_s[v]],
            output_bytes=float(problem.output_bytes[v]),
            weight_bytes=float(problem.weight_bytes[v]),
            **{field: label for column, field in LABELS.items() if (label := getattr(problem.labels, column)[v])},
        )
        for v in range(problem.num_ops)
    ]
    bandwidth = problem.link_bandwidth_bytes_per_s.tolist()
    columns = (problem.edge_src, problem.edge_dst, problem.edge_bytes, problem.edge_port)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    document = ProblemDocument(
        format=FORMAT_NAME,
        version=FORMAT_VERSION,
        name=problem.name,
        source=problem.source.value,
        model=problem.model,
        devices=[
            _FileDevice(
                name=device.name,
                memory_bytes=float(b) if np.isfinite(b) else None,
                launch_s=float(s),
                power_w=float(w) if np.isfinite(w) else None,
                plugin=device.plugin if problem.devices else None,
                properties=dict(device.properties) if problem.devices else None,
            )
            for device, b, s, w in zip(
                problem.device_records, problem.memory_bytes, problem.launch_s, problem.power_w, strict=True
            )
        ],
        links=_FileLinks(
            bandwidth_bytes_per_s=[[None if np.isinf(x) else x for x in r] for r in bandwidth],
            latency_s=problem.link_latency_s.tolist(),
        ),
        op_overhead_s=problem.op_overhead_s,
        transfer_overhead_s=problem.transfer_overhead_s,
        slowdown=None if problem.slowdown is None else problem.slowdown.tolist(),
        ops=ops,
        edges=[_Edge(src=problem.op_names[u], dst=problem.op_names[v], bytes=b, port=p or None) for u, v, b, p in rows],
    )
    # no memory_bytes means no limit and a null bandwidth no cost, so None is left out
    return document.model_dump_json(exclude_none=True, indent=1) + "\n"


def _problem(document: ProblemDocument) -> ScheduleProblem:
    """Return the problem of a document whose fields are well-formed. Raises FileFormatError naming the place."""
    k = len(document.devices)
    _check_names("devices", (device.name for device in document.devices))
    _check_names("ops", (op.name for op in document.ops))
    edges = _edges(document.edges, {op.name: v for v, op in enumerate(document.ops)})
    memory = [FREE if device.memory_bytes is None else device.memory_bytes for device in document.devices]
    _check_ops(document.ops, memory)
    _check_acyclic(document.ops, edges)
    latency_s, bandwidth = _link_tables(document.links, k)
    outputs = np.array([op.output_bytes for op in document.ops])
    labels = {column: tuple(getattr(op, field) or "" for op in document.ops) for column, field in LABELS.items()}
    sizes = [e.bytes if e.bytes is not None else outputs[u] for e, u in zip(document.edges, edges[:, 0], strict=True)]
    return ScheduleProblem.from_arrays(
        [[np.nan if s is None else s for s in op.time_s] for op in document.ops],
        edges,
        output_bytes=outputs,
        edge_bytes=sizes,
        edge_port=[edge.port or 0 for edge in document.edges],
        link_latency_s=latency_s,
        link_bandwidth_bytes_per_s=bandwidth,
        weight_bytes=[op.weight_bytes for op in document.ops],
        memory_bytes=memory,
        launch_s=[device.launch_s for device in document.devices],
        op_overhead_s=document.op_overhead_s,
        transfer_overhead_s=document.transfer_overhead_s,
        name=document.name,
        op_names=[op.name for op in document.ops],
        device_names=[device.name for device in document.devices],
        labels=OpLabels(**labels, canonical=tuple(op.canonical or op.name for op in document.ops)),
        source=CostSource(document.source),
        model=document.model,
        devices=tuple(
            DeviceSpec(name=d.name, plugin=d.plugin or d.name, properties=d.properties or {}) for d in document.devices
        )
        if any(d.plugin for d in document.devices)
        else (),
        slowdown=None if document.slowdown is None else _square("slowdown", document.slowdown, k),
        power_w=[np.nan if d.power_w is None else d.power_w for d in document.devices],
    )


def _check_names(what: str, names: Iterable[str]) -> None:
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in seen:
            raise FileFormatError(f"{what}[{i}].name: {name!r} is already the name of {what}[{seen[name]}]")
        seen[name] = i


def _check_ops(ops: Sequence[_FileOp], memory_bytes: Sequence[float]) -> None:
    """Raise FileFormatError for ops that no device can run or hold, alone or together."""
    common: dict[str, set[int]] = {}
    for i, op in enumerate(ops):
        if len(op.time_s) != len(memory_bytes):
            expected = f"{len(memory_bytes)} entries expected, one per device"
            raise FileFormatError(f"ops[{i}].time_s: {expected}, not {len(op.time_s)} (op {op.name!r})")
        able = {d for d, s in enumerate(op.time_s) if s is not None}
        if not able:
            raise FileFormatError(f"ops[{i}].time_s: no device supports op {op.name!r}; give at least one a time")
        needed, room = op.weight_bytes + op.output_bytes, max(memory_bytes[d] for d in able)
        if needed > room:
            raise FileFormatError(
                f"ops[{i}]: {op.name!r} needs {needed:.0f} bytes for weights and output, "
                f"but the largest device that supports it has {room:.0f}"
            )
        if op.colocate:
            common[op.colocate] = common.get(op.colocate, able) & able
            if not common[op.colocate]:
                raise FileFormatError(f"ops[{i}].colocate: no device supports all ops of the set {op.colocate!r}")
    weights, room = sum(op.weight_bytes for op in ops), sum(memory_bytes)
    if weights > room:
        raise FileFormatError(
            f"devices: the weights of all ops take {weights:.0f} bytes, but all devices together have {room:.0f}"
        )


def _edges(edges: Sequence[_Edge], index: Mapping[str, int]) -> IntArray:
    """Return [E, 2] op indices."""
    pairs = np.empty((len(edges), 2), dtype=np.int64)
    for i, edge in enumerate(edges):
        for side, name in enumerate((edge.src, edge.dst)):
            if name not in index:
                raise FileFormatError(f"edges[{i}].{('src', 'dst')[side]}: there is no op {name!r}")
            pairs[i, side] = index[name]
    return pairs


def _check_acyclic(ops: Sequence[_FileOp], edges: IntArray) -> None:
    with suppress(ValueError):
        topological_order(len(ops), edges[:, 0], edges[:, 1])
        return
    import networkx as nx

    cycle = nx.find_cycle(nx.DiGraph(edges.tolist()))
    shown = [repr(ops[v].name) for v in (cycle[0][0], *(v for _, v in cycle))]
    names = " -> ".join(shown if len(shown) <= 8 else [*shown[:6], "...", shown[-1]])
    raise FileFormatError(f"edges[{edges.tolist().index(list(cycle[0]))}]: the edges form a cycle: {names}")


def _link_tables(links: _FileLinks | None, k: int) -> tuple[FloatArray, FloatArray]:
    """Return [D, D] latencies and bandwidths; without links, which one device may do without, all is free."""
    if links is None:
        if k > 1:
            raise FileFormatError(f"links: missing, but there are {k} devices")
        return np.zeros((1, 1)), np.full((1, 1), FREE)
    bandwidth = _square("links.bandwidth_bytes_per_s", links.bandwidth_bytes_per_s, k)
    return _square("links.latency_s", links.latency_s, k), bandwidth


def _square(field: str, rows: Sequence[Sequence[float | None]], k: int) -> FloatArray:
    """Return a [k, k] table; null means a free link."""
    if len(rows) != k:
        raise FileFormatError(f"{field}: {k} rows expected, one per device, not {len(rows)}")
    for i, row in enumerate(rows):
        if len(row) != k:
            raise FileFormatError(f"{field}[{i}]: {k} entries expected, one per device, not {len(row)}")
    return np.array([[FREE if x is None else x for x in row] for row in rows], dtype=np.float64)

"""The sharded workloads of DOPPLER on torch devices: parity, work-conserving against bulk-synchronous, captured graphs.

Four logical devices stand on one GPU with streams of their own (--partition: multiprocessors of their own too;
--gpus: one GPU each), where torch sees one, at the paper's sizes. Otherwise they are threads of the CPU, at small
sizes; these figures say nothing of a GPU. Placements are ENUMERATIVEOPTIMIZER's on the paper's platform (simulated).

parity      largest error over largest value against NumPy in double precision, at small sizes, all in f32, no TF32
dynamic     the event loop: median seconds of a run, inputs in place
barrier     the same program level by level; the paper's column is another system (Table 1: ScaLAPACK, tensor parallel)
captured    the whole program as one CUDA graph, GPU only
bound       the larger of: operations of all products over the rate of products, bytes of all transfers over the rate
            of copies, both measured in the same run on the same devices, all of them busy

Usage: python benchmarks/cuda_workloads.py [--rounds 9] [--partition | --gpus] [--workloads chainmm,ffnn] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from machine import machine

from hsdag.commands.workload import workload_problem
from hsdag.evaluators.torch import RunPlan, random_inputs, run_workload, workload_graph
from hsdag.ir.errors import ExecutionError
from hsdag.models import Workload
from hsdag.models.sharded_workloads import (
    ChainSizes,
    FeedForwardSizes,
    LlamaSizes,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
)
from hsdag.models.workload_numpy import execute
from hsdag.placers.registry import make_placer
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.torch_backend import (
    CapturedProgram,
    Feed,
    Inputs,
    LogicalDevice,
    Program,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    build_program,
    logical_devices,
)
from hsdag.runtime.torch_backend.streams import partition_streams
from hsdag.runtime.torch_ops import allow_tf32
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

K = 4
TINY = LlamaSizes(tokens=16, width=64, heads=4, hidden=96, vocabulary=64)
SMALL = LlamaSizes(tokens=256, width=512, heads=8, hidden=1024, vocabulary=2048)
Maker = Callable[[], Workload]
WORKLOADS: dict[str, tuple[Maker, Maker, Maker]] = {  # sizes for parity, for the CPU, of the paper
    "chainmm": (lambda: chainmm(K, ChainSizes(64)), lambda: chainmm(K, ChainSizes(1024)), lambda: chainmm(K)),
    "ffnn": (
        lambda: ffnn(K, FeedForwardSizes(64, 8, 64)),
        lambda: ffnn(K, FeedForwardSizes(2048, 32, 4096)),
        lambda: ffnn(K),
    ),
    "llama-block": (lambda: llama_block(K, TINY), lambda: llama_block(K, SMALL), lambda: llama_block(K)),
    "llama-layer": (lambda: llama_layer(K, TINY), lambda: llama_layer(K, SMALL), lambda: llama_layer(K)),
}
PAPER_RATIO = {"chainmm": 139.0 / 185.3, "ffnn": 50.2 / 76.9}


@dataclass
class Row:
    """One line of the table, seconds by mode with all samples."""

    workload: str
    parity: float
    dynamic_s: list[float]
    barrier_s: list[float]
    captured_s: list[float]
    bound_s: float
    bound_by: str

    def line(self) -> str:
        dynamic, barrier = np.median(self.dynamic_s), np.median(self.barrier_s)
        paper = PAPER_RATIO.get(self.workload)
        captured = np.median(self.captured_s) if self.captured_s else None
        best = dynamic if captured is None else min(dynamic, captured)
        cells = (
            f"{self.parity:.1e}",
            f"{1e3 * dynamic:.2f}",
            f"{1e3 * barrier:.2f}",
            f"{dynamic / barrier:.2f}",
            "" if paper is None else f"{paper:.2f}",
            "" if captured is None else f"{1e3 * captured:.2f}",
            "" if captured is None else f"{captured / dynamic:.2f}",
            f"{1e3 * self.bound_s:.2f}",
            f"{100 * self.bound_s / best:.0f}%",
            self.bound_by,
        )
        return f"{self.workload:<13}" + "".join(f"{cell:>12}" for cell in cells)


HEADER = f"{'workload':<13}" + "".join(
    f"{cell:>12}"
    for cell in ("parity", "dynamic ms", "barrier ms", "dyn/barrier", "paper", "captured ms", "capt/dyn", "bound ms",
                 "achieved", "bound by")
)  # fmt: skip


def parity(workload: Workload, devices: Sequence[LogicalDevice]) -> float:
    """The largest relative error of three random placements against NumPy in double precision."""
    inputs = random_inputs(workload_graph(workload, widen=True))
    wide = {name: x.to(torch.complex128 if x.is_complex() else torch.float64).numpy() for name, x in inputs.items()}
    wanted = execute(workload, wide)
    errors = []
    for seed in range(3):
        placement = np.random.default_rng(seed).integers(0, K, workload.graph.num_ops)
        got = run_workload(workload, placement, devices, inputs, plan=RunPlan(widen=True)).outputs
        errors += [np.abs(got[name].numpy() - x).max() / np.abs(x).max() for name, x in wanted.items()]
    assert max(errors) < 1e-4, f"{workload.graph.name} differs from NumPy by {max(errors):.1e}"
    return float(max(errors))


def placed(workload: Workload) -> np.ndarray:
    """ENUMERATIVEOPTIMIZER's placement on four P100."""
    problem = workload_problem(workload, load_platform("p100x4"))
    placer = make_placer("enumerative")
    return solve(problem, placer, SolveOptions("enumerative", budget_s=20)).device


def side_by_side(devices: Sequence[LogicalDevice], dtype: torch.dtype, size: int, is_copy: bool, share: int) -> float:
    """Seconds of ``share`` products of ``size`` on every device at once, or of a copy from each to the next."""
    nodes = [TorchNode(f"x{d}", feed=Feed("x", dtype, (size, size))) for d in range(len(devices))]
    placement = list(range(len(devices)))
    for d in range(len(devices)):
        for i in range(share):
            run = (lambda xs: (xs[0][:1],)) if is_copy else (lambda xs: (xs[0] @ xs[0],))
            nodes.append(TorchNode(f"y{d}.{i}", reads=((d, 0),), run=run))
            placement.append((d + 1) % len(devices) if is_copy else d)
    outputs = {nodes[v].name: (v, 0) for v in range(len(devices), len(nodes))}
    program = build_program(TorchGraph("rate", tuple(nodes), outputs), placement, devices)
    with TorchExecutor(program) as executor:
        executor.load({"x": torch.ones(size, size, dtype=dtype) / size})
        return min(timed(executor) for _ in range(5))


def timed(executor: TorchExecutor) -> float:
    """Seconds of one inference."""
    inference = executor.submit(limit_s=300)
    inference.wait()
    return inference.run.makespan_s


def bound(program: Program, workload: Workload, devices: Sequence[LogicalDevice], widen: bool) -> tuple[float, str]:
    """The larger of the two bounds in seconds, and what sets it."""
    graph, on_gpu = workload.graph, devices[0].is_cuda
    size = 8192 if on_gpu else 1024
    is_half = not widen and "llama" in graph.name
    dtype = torch.float16 if is_half else torch.float32
    rate = K * 4 * 2 * size**3 / side_by_side(devices, dtype, size, False, 4)
    products = float(sum(f for f, kind in zip(graph.flops, graph.op_types, strict=True) if kind == "MatMul"))
    moved = float(program.tasks.size_bytes.sum())
    copied_per_s = K * size * size * dtype.itemsize / side_by_side(devices, dtype, size, True, 1)
    found = {"products": products / rate, "copies": moved / copied_per_s}
    slower = max(found, key=found.__getitem__)
    return found[slower], slower


def measure(name: str, devices: Sequence[LogicalDevice], rounds: int) -> Row:
    """Everything of one workload, modes in turn."""
    on_gpu = devices[0].is_cuda
    tiny, small, whole = WORKLOADS[name]
    error = parity(tiny(), devices)
    workload = whole() if on_gpu else small()
    widen = not on_gpu and "llama" in name  # products in f16 are slow on the CPU
    graph = workload_graph(workload, widen=widen)
    inputs = random_inputs(graph)
    program = build_program(graph, placed(workload), devices)
    bound_s, bound_by = bound(program, workload, devices, widen)
    row = Row(name, error, [], [], [], bound_s, bound_by)
    one_gpu = on_gpu and len({device.torch_device for device in devices}) == 1
    with TorchExecutor(program) as dynamic, TorchExecutor(program, barrier=True) as barrier:
        for executor in (dynamic, barrier):
            executor.load(inputs)
            for _ in range(3):
                timed(executor)
        captured = capture(program, inputs) if one_gpu else None
        for _ in range(rounds):
            row.dynamic_s.append(timed(dynamic))
            row.barrier_s.append(timed(barrier))
            if captured is not None:
                begin_s = time.perf_counter()
                captured.replay()
                row.captured_s.append(time.perf_counter() - begin_s)
        if captured is not None:
            check_captured(captured, dynamic)
            captured.close()
    return row


def capture(program: Program, inputs: Inputs) -> CapturedProgram | None:
    """The captured program, or a line that says why there is none."""
    try:
        return CapturedProgram(program, inputs)
    except ExecutionError as error:
        print(f"not captured: {error}")
        return None


def check_captured(captured: CapturedProgram, dynamic: TorchExecutor) -> None:
    """Both modes must give the same results."""
    got, wanted = captured.infer(), dynamic.infer()
    for name, x in wanted.items():
        error = (got[name].float() - x.float()).abs().max() / x.float().abs().max()
        assert error < (1e-2 if x.dtype is torch.float16 else 1e-4), (
            f"captured {name} differs from the dynamic loop by {error:.1e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--partition", action="store_true", help="multiprocessors of its own for each logical device")
    parser.add_argument("--gpus", action="store_true", help="four GPUs instead of four parts of one")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    allow_tf32(False)
    if not torch.cuda.is_available():
        devices = logical_devices(K)
        where = "four logical CPU devices at small sizes; no figure here is one of a GPU, those are owed"
    elif args.gpus:
        devices = tuple(LogicalDevice(f"gpu{i}", f"cuda:{i}") for i in range(K))
        where = f"four {torch.cuda.get_device_name(0)}"
    else:
        devices = logical_devices(K, "cuda:0", partition=args.partition)
        where = f"four logical devices on one {torch.cuda.get_device_name(0)}, the paper's sizes"
    if args.partition and torch.cuda.is_available():
        where += f"; {partition_streams(devices)[1]}"
    print(f"{machine()}\n{where}\n{HEADER}")
    rows = []
    for name in args.workloads.split(","):
        rows.append(measure(name, devices, args.rounds))
        print(rows[-1].line(), flush=True)
    if args.json:
        document = {"machine": machine(), "devices": where, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

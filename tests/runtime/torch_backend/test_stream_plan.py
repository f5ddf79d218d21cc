"""The fixed order of a captured graph: every read comes after its write, whatever streams do between events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hsdag.runtime.torch_backend import Feed, Program, TorchGraph, TorchNode, build_program, logical_devices
from hsdag.runtime.torch_backend.captured import Step, stream_plan


def same(xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return (xs[0],)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    count = draw(st.integers(1, 12))
    nodes = [TorchNode("x", feed=Feed("x", torch.float32, (1,)))]
    for v in range(1, count + 1):
        reads = draw(st.lists(st.integers(0, v - 1), min_size=1, max_size=3))
        nodes.append(TorchNode(f"op{v}", reads=tuple((u, 0) for u in reads), run=same))
    placement = draw(st.lists(st.integers(0, 2), min_size=count + 1, max_size=count + 1))
    graph = TorchGraph("random", tuple(nodes), {"y": (count, 0)})
    return build_program(graph, placement, logical_devices(3))


def known_to_be_over(plan: Sequence[Step]) -> dict[int, set[int]]:
    """By task, the tasks that have ended whenever it starts: those before it on its stream, and what it waits for."""
    over: dict[int, set[int]] = {}
    last_on: dict[int, int] = {}
    for step in plan:
        direct = [*step.waits, *([last_on[step.resource]] if step.resource in last_on else [])]
        over[step.task] = set(direct).union(*(over[t] for t in direct))
        last_on[step.resource] = step.task
    return over


@given(programs(), st.randoms())
def test_every_task_starts_after_all_it_reads_is_written(program: Program, random: np.random.Generator) -> None:
    ranks = np.array([random.random() for _ in range(program.tasks.num_tasks)])
    plan = stream_plan(program, ranks)
    over = known_to_be_over(plan)
    assert sorted(step.task for step in plan) == list(range(program.tasks.num_tasks))
    assert all(before in over[after] for before, after in program.tasks.edges.tolist())


@given(programs())
def test_whatever_is_waited_for_is_recorded_before(program: Program) -> None:
    recorded: set[int] = set()
    for step in stream_plan(program):
        assert set(step.waits) <= recorded
        recorded |= {step.task} if step.records else set()


@given(programs())
def test_what_is_dropped_is_touched_by_one_stream_alone_and_never_after(program: Program) -> None:
    plan = stream_plan(program)
    dropped: set[int] = set()
    touched: dict[int, set[int]] = {}
    for step in plan:
        work = program.works[step.task]
        assert not dropped & {*work.reads, *work.writes}
        dropped |= set(step.drops)
        for buffer in (*work.reads, *work.writes):
            touched.setdefault(buffer, set()).add(step.resource)
    assert all(len(touched[buffer]) == 1 for buffer in dropped)
    assert not dropped & (set(program.outputs.values()) | set(program.feeds))


def test_ranks_decide_among_what_is_ready() -> None:
    nodes = (
        TorchNode("x", feed=Feed("x", torch.float32, (1,))),
        *(TorchNode(f"op{i}", reads=((0, 0),), run=same) for i in range(3)),
    )
    graph = TorchGraph("fan", nodes, {f"y{i}": (1 + i, 0) for i in range(3)})
    program = build_program(graph, [0] * 4, logical_devices(1))
    assert [step.task for step in stream_plan(program, np.array([2.0, 0.0, 1.0]))] == [1, 2, 0]

"""The dynamic loop on logical CPU devices: results, transfers, memory, and what happens when things go wrong."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hsdag.base.errors import ExecutionError
from hsdag.runtime.torch.buffers import Residents
from hsdag.runtime.torch.devices import LogicalDevice, logical_devices
from hsdag.runtime.torch.executor import TorchExecutor
from hsdag.runtime.torch.graph import PINNED_BYTES, Feed, TorchGraph, TorchNode
from hsdag.runtime.torch.op import TensorFunction, with_rounded_operands
from hsdag.runtime.torch.program import build_program, copy_between
from tests.hsdag.runtime.executor.hand_backend import await_until

Tensor = torch.Tensor
SIZE = 1000
ZEROS = {"x": np.zeros(SIZE, dtype=np.float32)}


def plus_one(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (sum(xs[1:], xs[0]) + 1.0,)


def fed(name: str = "x") -> TorchNode:
    return TorchNode(name, feed=Feed(name, torch.float32, (SIZE,)))


def op(name: str, *reads: int, run: TensorFunction | None = None) -> TorchNode:
    return TorchNode(name, "Add", tuple((u, 0) for u in reads), run or plus_one, output_bytes=(4.0 * SIZE,))


CHAIN = TorchGraph("chain", (fed(), op("op0", 0)), {"y": (1, 0)})


def executor_of(graph: TorchGraph, placement: Sequence[int] = (), **options: float) -> TorchExecutor:
    """On as many devices as there are numbers; all on one where nothing is placed."""
    placed = placement or [0] * graph.num_nodes
    return TorchExecutor(build_program(graph, placed, logical_devices(1 + max(placed))), **options)  # type: ignore[arg-type]


def hanging(released: threading.Event) -> TensorFunction:
    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        released.wait(20)
        return (xs[0],)

    return run


@given(st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_every_placement_gives_the_same_bits(placement: list[int]) -> None:
    reads = [(0,), (0,), (1, 2), (1,), (3, 4), (2, 5), (5,), (6, 7, 3)]
    nodes = (fed(), *(op(f"op{i}", *rs) for i, rs in enumerate(reads)))
    with executor_of(TorchGraph("diamonds", nodes, {"y": (8, 0), "z": (4, 0)}), placement) as executor:
        got = executor.infer({"x": np.linspace(0, 1, SIZE, dtype=np.float32)})
    values = [torch.linspace(0, 1, SIZE)]
    for rs in reads:
        values.append(sum((values[u] for u in rs[1:]), values[rs[0]]) + 1.0)
    assert torch.allclose(got["y"], values[8])
    assert torch.allclose(got["z"], values[4])


def test_constants_lie_with_their_readers_and_are_never_sent() -> None:
    ones = torch.ones(SIZE)
    nodes = (fed(), TorchNode("c", constants=(ones,)), op("a", 0, 1), op("b", 2, 1))
    with executor_of(TorchGraph("g", nodes, {"y": (3, 0)}), [0, 0, 0, 1]) as executor:
        assert executor.program.tasks.task_names == ("a", "a to d1", "b")
        assert [x.data_ptr() for x in executor.residents.values if x is not None] == [ones.data_ptr()] * 2
        assert executor.program.tasks.size_bytes.tolist() == [0.0, 4.0 * SIZE, 0.0]
        assert executor.infer(ZEROS)["y"].tolist() == [4.0] * SIZE


def test_a_result_is_sent_once_to_a_device_by_the_rank_of_the_first_that_waits_for_it() -> None:
    nodes = (fed(), TorchNode("a", "Add", ((0, 0),), plus_one), op("b", 1), op("c", 1))
    program = build_program(TorchGraph("g", nodes, {"y": (3, 0), "z": (2, 0)}), [0, 0, 1, 1], logical_devices(2))
    priority = dict(zip(program.tasks.task_names, program.task_priority(np.array([0.0, 9.0, 7.0, 3.0])), strict=True))
    assert priority == {"a": 9.0, "a to d1": 3.0, "b": 7.0, "c": 3.0}
    assert not program.tasks.size_bytes.any()  # of a nothing is known


def test_a_result_that_nothing_reads_overwrites_none_and_ops_have_the_threads_of_their_device() -> None:
    threads = list[int]()

    def both(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        threads.append(torch.get_num_threads())
        return xs[0] - 1.0, xs[0] + 1.0

    nodes = (fed(), op("two", 0, run=both), TorchNode("y", "Add", ((1, 1), (3, 0)), plus_one))
    graph = TorchGraph("g", (*nodes, TorchNode("c", constants=(torch.ones(SIZE),))), {"y": (2, 0)})
    with TorchExecutor(build_program(graph, [0] * 4, (LogicalDevice("d", "cpu", 2),))) as executor:
        assert executor.infer(ZEROS)["y"].tolist() == [3.0] * SIZE
    assert threads == [2]


def test_a_feed_is_a_part_of_an_input() -> None:
    feed = Feed("x", torch.float32, (2, 1), ((1, 3), (0, 1)))
    assert feed.cut(torch.arange(8).reshape(4, 2)).tolist() == [[2], [4]]
    with pytest.raises(ValueError, match=r"2 axes are expected, not \(8,\)"):
        feed.cut(torch.arange(8))


def test_a_tensor_is_dropped_after_its_last_use() -> None:
    seen: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def watched(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        alive.append(sum(ref() is not None for ref in seen))
        out = xs[0] + 1
        seen.append(weakref.ref(out))
        return (out,)

    nodes = (fed(), *(op(f"op{i}", i, run=watched) for i in range(6)))
    with executor_of(TorchGraph("g", nodes, {"y": (6, 0)})) as executor:
        executor.infer(ZEROS)
    assert max(alive) == 1


def test_a_constant_that_cannot_be_put_on_its_device_is_named_with_it() -> None:
    nodes = (fed(), TorchNode("weights", constants=(torch.ones(2, device="meta"),)), op("a", 0, 1))
    with pytest.raises(ExecutionError, match=r"constant 'weights' on device d0: Cannot copy [^\n]+$"):
        executor_of(TorchGraph("g", nodes, {"y": (2, 0)}))


@pytest.mark.parametrize(("times", "reason"), [(-1, r"Trying to create[^\n]+"), (1 << 50, r"out of memory: [^\n]+")])
def test_a_task_that_raises_is_named_in_one_line_and_keeps_no_tensor_alive(times: int, reason: str) -> None:
    kept: list[weakref.ref[Tensor]] = []

    def watched(xs: Sequence[Tensor]) -> Sequence[Tensor]:
        kept.append(weakref.ref(xs[0]))
        return (xs[0].repeat(times),)

    graph = TorchGraph("g", (fed(), op("a", 0), op("bad", 1, run=watched)), {"y": (2, 0)})
    with executor_of(graph, [0, 0, 1]) as executor:
        with pytest.raises(ExecutionError, match=f"^'bad' on device d1 failed: {reason}$"):
            executor.infer(ZEROS)
        gc.collect()
        assert [ref() for ref in kept] == [None]


def test_a_cancelled_inference_skips_what_is_queued_and_a_task_starts_when_it_is_taken_up() -> None:
    released, ran = threading.Event(), list[int]()

    def noted(xs: Sequence[Tensor]) -> Sequence[Tensor]:
        ran.append(1)
        time.sleep(0.002)
        return xs

    nodes = (fed(), op("first", 0, run=hanging(released)), *(op(f"later{i}", 0, run=noted) for i in range(3)))
    with executor_of(TorchGraph("g", nodes, {f"y{i}": (1 + i, 0) for i in range(4)})) as executor:
        executor.load(ZEROS)
        inference = executor.submit()
        await_until(lambda: inference.run.num_running == 2)  # one hangs, and one is queued
        inference.cancel()
        await_until(lambda: inference.run.error is not None)
        released.set()
        with pytest.raises(ExecutionError, match="was cancelled"):
            inference.wait()
        assert ran == []
        again = executor.submit()
        again.wait()
        start_s, end_s = again.run.times
    assert (np.sort(start_s)[1:] >= np.sort(end_s)[:-1]).all()


def test_inferences_side_by_side_keep_their_tensors_apart_and_leave_no_thread() -> None:
    before = threading.active_count(), torch.get_num_threads()
    graph = TorchGraph("chain", (fed(), *(op(f"op{i}", i) for i in range(5))), {"y": (5, 0)})
    with executor_of(graph, [0, 1, 0, 1, 0, 1]) as executor:
        executor.load(ZEROS)
        for _ in range(30):
            results = [inference.wait()["y"] for inference in [executor.submit() for _ in range(8)]]
            assert [x.tolist() for x in results] == [[5.0] * SIZE] * 8
            assert len({x.data_ptr() for x in results}) == 8
    assert (threading.active_count(), torch.get_num_threads()) == before


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "has no value for its inputs 'x'"),
        ({"y": np.zeros(SIZE)}, "has no input 'y'; it has x"),
        ({"x": np.array([None] * SIZE)}, r"input 'x' of 'chain': can't convert np.ndarray of type numpy.object_"),
        ({"x": np.zeros(3)}, r"input 'x' of 'chain': shape \(1000,\) is expected, not \(3,\)"),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs: dict[str, np.ndarray], message: str) -> None:
    executor = executor_of(CHAIN)
    with pytest.raises(ExecutionError, match=message):
        executor.infer(inputs)
    executor.close()
    with pytest.raises(ExecutionError, match="the executor of 'chain' is closed"):
        executor.infer(ZEROS)


def test_writing_into_results_changes_neither_constants_nor_loaded_inputs() -> None:
    """The input, a constant, and a view of each, all of them results."""
    nodes = (
        TorchNode("x", feed=Feed("x", torch.float32, (4,))),
        TorchNode("c", constants=(torch.ones(4, requires_grad=True),)),
        op("v", 0, run=lambda xs: (xs[0].reshape(2, 2),)),
        op("w", 1, run=lambda xs: (xs[0][1:],)),
    )
    given = np.arange(4, dtype=np.float32)
    given.flags.writeable = False  # which is read without a warning
    outputs = {name: (v, 0) for v, name in enumerate("xcvw")}
    with executor_of(TorchGraph("views", nodes, outputs)) as executor:
        executor.load({"x": given})
        for x in executor.infer().values():
            assert not x.requires_grad
            x.zero_()
        given.flags.writeable = True
        given[:] = -1
        again = {name: x.tolist() for name, x in executor.infer().items()}
        assert again == {"x": [0, 1, 2, 3], "c": [1] * 4, "v": [[0, 1], [2, 3]], "w": [1] * 3}
        executor.load({"x": torch.arange(4.0, requires_grad=True)})
        assert executor.infer()["v"].tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_an_inference_that_begins_while_inputs_are_loaded_has_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread begins one when the first of two inputs has been placed, and the second has not."""
    graph = TorchGraph("sum", (fed("x"), fed("y"), op("z", 0, 1)), {"z": (2, 0)})
    ones, placed, begun = np.ones(SIZE, dtype=np.float32), threading.Event(), threading.Event()
    place = Residents._placed

    def slowly(residents: Residents, what: str, *args: Any, **options: Any) -> Tensor:
        if what == "input 'y'" and placed.is_set():
            begun.wait(20)
        tensor = place(residents, what, *args, **options)
        placed.set()
        return tensor

    with executor_of(graph) as executor:
        executor.load({"x": ones, "y": 2 * ones})
        monkeypatch.setattr(Residents, "_placed", slowly)
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(executor.load, {"x": 10 * ones, "y": 20 * ones})
            assert placed.wait(20)
            before = executor.submit()
            begun.set()
            loading.result(20)
        assert before.wait()["z"][0] == 1 + 2 + 1
        assert executor.infer()["z"][0] == 10 + 20 + 1


def test_executors_of_a_graph_share_constants_on_a_device_and_let_them_go_together() -> None:
    nodes = (fed(), TorchNode("c", constants=(torch.ones(SIZE),)), TorchNode("y", "MatMul", ((0, 0), (1, 0)), plus_one))
    graph = TorchGraph("g", nodes, {"y": (2, 0)})
    on = (LogicalDevice("a", precision="bf16"), LogicalDevice("b", precision="bf16"), LogicalDevice("c"))
    executors = [TorchExecutor(build_program(graph, [0] * 3, (device,))) for device in on]
    half, again, single = ([x for x in each.residents.values if x is not None] for each in executors)
    assert half[0] is again[0]
    assert (half[0].dtype, single[0].dtype, len(graph.on_devices)) == (torch.bfloat16, torch.float32, 2)
    for each in executors[:2]:
        each.close()
    del half, again, executors[:2], each
    assert list(graph.on_devices) == [(1, 0, "cpu", None)]
    executors[0].close()


@pytest.mark.parametrize(("precision", "apart"), [("f32", 0.0), ("bf16", 2**-7), ("f16", 2**-9)])
def test_products_round_their_operands_as_the_device_says_and_nothing_else_does(precision: str, apart: float) -> None:
    """The result is in f32, and only as far from f32's as the rounding allows; the sum behind it is exact."""
    weights, given = torch.rand(64, 64) + 0.5, torch.rand(64, 64) + 0.5
    nodes = (
        TorchNode("x", feed=Feed("x", torch.float32, (64, 64))),
        TorchNode("w", constants=(weights,)),
        TorchNode("y", "MatMul", ((0, 0), (1, 0)), lambda xs: (xs[0] @ xs[1],)),
        TorchNode("z", "Add", ((0, 0), (1, 0)), lambda xs: (xs[0] + xs[1],)),
    )
    graph, device = TorchGraph("g", nodes, {"y": (2, 0), "z": (3, 0)}), LogicalDevice("d", precision=precision)
    with TorchExecutor(build_program(graph, [0] * 4, (device,))) as executor:
        found = executor.infer({"x": given})
    exact = given @ weights
    largest = float(((found["y"] - exact) / exact).abs().max())
    assert found["y"].dtype is torch.float32
    assert apart / 16 <= largest <= 2 * apart
    assert torch.equal(found["z"], given + weights)


def test_tf32_is_on_while_a_product_of_such_a_device_is_computed_and_at_no_other_time() -> None:
    seen: dict[str, bool] = {}

    def noted(name: str) -> TensorFunction:
        def run(xs: Sequence[Tensor]) -> Sequence[Tensor]:
            seen[name] = torch.backends.cuda.matmul.allow_tf32
            if name == "failing":
                raise ValueError(name)
            return xs

        return run

    with_rounded_operands(noted("product"), "tf32")([])
    with_rounded_operands(noted("other"), "f32")([])
    with pytest.raises(ValueError, match="failing"):
        with_rounded_operands(noted("failing"), "tf32")([])
    assert seen == {"product": True, "other": False, "failing": True}
    assert not torch.backends.cuda.matmul.allow_tf32


def test_the_planned_peak_counts_results_from_their_op_to_their_last_reader() -> None:
    """By hand: a; a and b; then c as well, whose end lets a and b go; the output stays."""
    nodes = (fed(), op("a", 0), op("b", 1), op("c", 1, 2), op("y", 3))
    program = build_program(TorchGraph("g", nodes, {"y": (4, 0)}), [0] * 5, logical_devices(1))
    assert program.peak_bytes == 3 * 4.0 * SIZE


def test_a_view_is_made_contiguous_where_it_lies_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bool] = []
    send = Tensor.to

    def noted(x: Tensor, *args: Any, **options: Any) -> Tensor:
        sent.append(x.is_contiguous())
        return send(x, *args, **options)

    monkeypatch.setattr(Tensor, "to", noted)
    far = LogicalDevice("far")
    monkeypatch.setattr(LogicalDevice, "physical", property(lambda each: torch.device("cpu", int(each is far))))
    (found,) = copy_between(LogicalDevice("near"), far)([torch.arange(6).reshape(2, 3).T])
    assert (sent, found.tolist()) == ([True], [[0, 3], [1, 4], [2, 5]])


def test_large_constants_are_pinned_where_that_takes_little_more_memory_and_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pin(x: Tensor) -> Tensor:
        if x.nbytes > 3 * PINNED_BYTES:
            raise RuntimeError("CUDA error: out of memory")
        return x + 1

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    sizes = [1, 1.25, 1.75, 2, 4, 1 / PINNED_BYTES]  # the second is far from a power of two
    constants = tuple(torch.zeros(int(PINNED_BYTES * size), dtype=torch.uint8) for size in sizes)
    graph = TorchGraph("g", (TorchNode("c", constants=constants), fed()), {"y": (0, 0)}).pinned()
    assert [int(x[0]) for x in graph.nodes[0].constants] == [1, 0, 1, 1, 0, 0]


def test_what_is_loaded_while_an_inference_is_in_flight_is_for_those_after_it() -> None:
    released, given = threading.Event(), {"x": np.zeros(4, dtype=np.float32)}
    nodes = (TorchNode("x", feed=Feed("x", torch.float32, (4,))), op("slow", 0, run=hanging(released)), op("y", 1))
    graph = TorchGraph("g", nodes, {"y": (2, 0)})
    with executor_of(graph) as executor:
        executor.load(given)
        inference = executor.submit()
        executor.load({"x": np.ones(4, dtype=np.float32)})
        released.set()
        assert inference.wait()["y"].tolist() == [1.0] * 4
        assert executor.infer()["y"].tolist() == [2.0] * 4
        assert executor.residents.size_bytes == 16

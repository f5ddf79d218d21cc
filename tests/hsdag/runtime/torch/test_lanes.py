"""The executor on GPUs that stand in: what is enqueued when, what waits for what, and how long tensors live."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from hsdag.base.errors import ExecutionError
from hsdag.runtime.executor.engine import Loop
from hsdag.runtime.torch import lanes
from hsdag.runtime.torch.devices import LogicalDevice
from hsdag.runtime.torch.executor import TorchExecutor
from hsdag.runtime.torch.graph import Feed, TorchGraph, TorchNode
from hsdag.runtime.torch.op import TensorFunction
from hsdag.runtime.torch.program import build_program
from tests.hsdag.runtime.executor.hand_backend import FOREVER_S, await_until
from tests.hsdag.runtime.torch.fake_streams import FakeGpus, fake_gpus

Tensor = torch.Tensor
GIVEN = {"x": np.arange(4, dtype=np.float32)}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    with fake_gpus(monkeypatch) as found:
        yield found


def devices(*hardware: str, depth: int = 16) -> tuple[LogicalDevice, ...]:
    return tuple(LogicalDevice(f"d{i}", name, depth=depth) for i, name in enumerate(hardware))


def scaled(number: int) -> Callable[[Sequence[Tensor]], Tensor]:
    return lambda xs: sum(xs[1:], xs[0]) * 0.5 + number


def executor_of(
    gpus: FakeGpus,
    reads: Sequence[Sequence[int]],
    placement: Sequence[int],
    on: Sequence[LogicalDevice],
    by_openvino: dict[int, TensorFunction] | None = None,
) -> TorchExecutor:
    """Node 0 is the input, node v > 0 the kernel ``v`` that reads those of ``reads[v - 1]``; all are outputs."""
    nodes = [TorchNode("x", feed=Feed("x", torch.float32, (4,)))]
    for v, sources in enumerate(reads, 1):
        other = (by_openvino or {}).get(v)
        run = other or gpus.kernel(str(v), on[placement[v]], scaled(v))
        nodes.append(TorchNode(str(v), "Add", tuple((u, 0) for u in sources), run, in_torch=other is None))
    last = set(range(len(nodes))) - {u for sources in reads for u in sources}
    graph = TorchGraph("kernels", tuple(nodes), {f"y{v}": (v, 0) for v in sorted(last)})
    executor = TorchExecutor(build_program(graph, placement, on), grace_s=0.05)
    executor.load(GIVEN)
    return executor


def values_of(reads: Sequence[Sequence[int]]) -> list[Tensor]:
    values = [torch.from_numpy(GIVEN["x"])]
    for v, sources in enumerate(reads, 1):
        values.append(scaled(v)([values[u] for u in sources]))
    return values


def chain(count: int) -> list[list[int]]:
    return [[v] for v in range(count)]


def test_a_chain_on_one_gpu_is_enqueued_ahead_and_leaves_no_gap_while_it_runs(gpus: FakeGpus) -> None:
    """After each kernel that ends, the host enqueues another one, behind all others that wait."""
    num, depth = 12, 4
    with executor_of(gpus, chain(num), [0] * (num + 1), devices("cuda:0", depth=depth)) as executor:
        request = executor.submit()
        for ended in range(num):
            gpus.await_names("enqueue", min(depth + ended, num))
            assert len(gpus.names("run")) == ended
            gpus.step().await_names("run", ended + 1)
        assert torch.equal(request.wait()[f"y{num}"], values_of(chain(num))[num])
    assert gpus.names("run") == [str(v) for v in range(1, num + 1)]


def test_a_consumer_on_another_gpu_runs_after_the_producer_without_the_host(gpus: FakeGpus) -> None:
    gpus.notice.clear()  # the host sees no end
    with executor_of(gpus, chain(4), [0, 0, 1, 0, 1], devices("cuda:0", "cuda:1")) as executor:
        request = executor.submit()
        gpus.await_names("enqueue", 7)  # with three copies
        assert gpus.names("run") == []
        gpus.opened().await_names("run", 7)
        assert gpus.names("run") == ["1", "d0->d1", "2", "d1->d0", "3", "d0->d1", "4"]
        assert np.isnan(request.run.end_s).all()
        gpus.notice.set()
        assert torch.equal(request.wait()["y4"], values_of(chain(4))[4])


def test_an_op_left_to_openvino_keeps_no_gpu_from_its_work(gpus: FakeGpus) -> None:
    """It waits for its input, which its own GPU has made, and hangs."""
    released = threading.Event()

    def hang(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        released.wait(FOREVER_S)
        return (scaled(2)(xs),)

    gpus.opened()
    reads = [[0], [1], [2], [1], [4], [0], [6]]
    on = devices("cuda:0", "cuda:1")
    with executor_of(gpus, reads, [0, 0, 0, 0, 0, 1, 1, 1], on, {2: hang}) as executor:
        request = executor.submit()
        await_until(lambda: {"1", "4", "5", "6", "7"} <= set(gpus.names("run")))
        assert "3" not in gpus.names("enqueue")
        released.set()
        found, expected = request.wait(), values_of(reads)
        assert all(torch.equal(found[f"y{v}"], expected[v]) for v in (3, 5, 7))
        assert request.run.timeline.device_names == ("d0", "d1")
        tasks = executor.program.tasks
        assert tasks.where(tasks.task_names.index("2")) == "'2' on device d0 by OpenVINO"


def test_waiting_takes_no_turns_of_the_engine_and_asks_no_event(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    take_turn = Loop._take_turn

    def counted(loop: Loop) -> None:
        turns.append("turn")
        take_turn(loop)

    monkeypatch.setattr(Loop, "_take_turn", counted)
    with executor_of(gpus, chain(3), [0] * 4, devices("cuda:0")) as executor:
        request = executor.submit()
        gpus.await_names("enqueue", 3)
        with executor.engine._loop.turn:
            before = len(turns)
        assert not request.run.wait(0.05)
        assert len(turns) <= before + 1  # the engine's thread looks once more after the start
        gpus.opened()
        request.wait()
        assert len(turns) <= before + 1 + 2 * 3
    assert (gpus.counts["query"], gpus.counts["synchronize"]) == (0, 3)


def test_a_tensor_lives_until_the_event_behind_its_last_reader_was_seen(gpus: FakeGpus) -> None:
    reads = [[0], [1], [1], [2, 3]]
    with executor_of(gpus, reads, [0, 0, 0, 1, 0], devices("cuda:0", "cuda:1")) as executor:
        gpus.notice.clear()
        request = executor.submit()
        gpus.opened().await_names("run", 6)
        assert all(ref() is not None for ref in gpus.alive.values())
        gpus.notice.set()
        assert request.wait()["y4"].tolist() == values_of(reads)[4].tolist()
        await_until(lambda: [name for name, ref in gpus.alive.items() if ref() is not None] == ["4"])


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_anywhere_compute_what_the_cpu_computes(gpus: FakeGpus, seed: int) -> None:
    """On two GPUs, one of them twice, and the CPU, with latencies, ops left to OpenVINO, and requests in flight."""
    rng, dice = np.random.default_rng(seed), random.Random(seed)
    gpus.opened().latency = lambda: time.sleep(dice.random() * 2e-4)
    num, on = 24, devices("cuda:0", "cuda:0", "cuda:1", "cpu", depth=int(rng.integers(1, 8)))
    reads = [rng.choice(v, min(v, int(rng.integers(1, 4))), replace=False).tolist() for v in range(1, num + 1)]
    left = rng.choice(np.arange(1, num + 1), 3, replace=False).tolist()
    other: dict[int, TensorFunction] = {v: lambda xs, v=v: (scaled(v)(xs),) for v in left}  # type: ignore[misc]
    with executor_of(gpus, reads, rng.integers(0, 4, num + 1).tolist(), on, other) as executor:
        expected = values_of(reads)
        for _ in range(3):
            for request in [executor.submit() for _ in range(4)]:
                found = request.wait()
                assert all(torch.equal(found[name], expected[int(name[1:])]) for name in found)


def test_executors_share_streams_and_a_thread_sets_its_stream_once(gpus: FakeGpus) -> None:
    gpus.opened()
    on = devices("cuda:0")
    with executor_of(gpus, chain(20), [0] * 21, on) as first, executor_of(gpus, chain(3), [0] * 4, on) as second:
        first.infer()
        streams = {id(stream) for stream in (*first._backend._lanes[0]._streams, *second._backend._lanes[0]._streams)}
        assert len(streams) == 1
        assert gpus.counts["set_stream"] == 1  # the engine's thread alone enqueues


def test_a_kernel_that_fails_is_named_and_the_next_inference_works(gpus: FakeGpus) -> None:
    gpus.opened().failing = "2"
    with executor_of(gpus, chain(3), [0] * 4, devices("cuda:0", depth=1)) as executor:
        with pytest.raises(ExecutionError, match=r"^'2' on device d0 failed: an illegal access$"):
            executor.infer()
        gpus.failing = None
        assert torch.equal(executor.infer()["y3"], values_of(chain(3))[3])


def test_what_cannot_be_enqueued_is_named_and_keeps_its_inputs_until_its_stream_has_come_to_it(gpus: FakeGpus) -> None:
    def refuse(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        raise torch.OutOfMemoryError("CUDA out of memory\nTried")

    executor = executor_of(gpus, chain(2), [0] * 3, devices("cuda:0"))
    executor.program.works[1].__dict__["run"] = refuse
    with executor:
        request = executor.submit()
        with pytest.raises(ExecutionError, match=r"^'2' on device d0 failed: out of memory: CUDA out of memory$"):
            request.wait()
        assert gpus.alive["1"]() is not None
        gpus.opened()
        await_until(lambda: gpus.alive["1"]() is None)


def test_a_kernel_that_hangs_keeps_its_tensors_when_its_inference_and_executor_are_gone(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "CLOSE_S", 0.01)
    executor = executor_of(gpus, chain(2), [0] * 3, devices("cuda:0"))
    request = executor.submit()
    gpus.await_names("enqueue", 2)
    request.cancel()
    with pytest.raises(ExecutionError, match="was cancelled"):
        request.wait()
    executor.close()
    assert gpus.alive["2"]() is not None
    with executor_of(gpus, chain(1), [0] * 2, devices("cuda:0")) as later:  # would hang behind it
        (before,), (after,) = (each._backend._lanes[0]._streams for each in (executor, later))
        assert before is not after
    gpus.opened()
    await_until(lambda: gpus.alive["2"]() is None)

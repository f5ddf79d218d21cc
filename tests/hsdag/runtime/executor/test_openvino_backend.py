"""OpenVINO's requests: faults of real inferences, what is freed, parts that pass on what they read, and memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hsdag
from hsdag.base.errors import DeviceError, ExecutionError, PlacementError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.runtime.executor import cut, merging, openvino_backend
from hsdag.runtime.executor.compiling import compile_on, compile_placed
from hsdag.runtime.executor.openvino_backend import DeviceThread, SharedMemory, Slot, Wiring, memory_of, passed_on
from hsdag.runtime.executor.requests import WorkConservingModel
from tests.hsdag.runtime.executor.hand_backend import FOREVER_S, await_until
from tests.hsdag.runtime.executor.placing import placed
from tests.hsdag.runtime.executor.python_ops import Call, Gate, PythonOp, device_of, expected, python_model
from tests.precisions import needs_bf16

X = np.asarray([-1.0, 0.5, 1.0, 2.0], dtype=np.float32)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever goes wrong, threads end."""
    yield
    await_until(lambda: gc.collect() >= 0 and not any(t.name.startswith("hsdag-") for t in threading.enumerate()))


def compiled(core: ov.Core, model: ov.Model, limit_s: float | None = None) -> WorkConservingModel:
    return hsdag.compile_work_conserving(model, placed(model, device_of), core, time_limit_s=limit_s)


class Calls:
    """What an op does: it counts, raises so often at first, and then makes another call."""

    def __init__(self, call: Call = bool, failures: int = 0) -> None:
        self.call, self.failures, self.count = call, failures, 0

    def __call__(self) -> None:
        self.count += 1
        if self.failures:
            self.failures -= 1
            raise ValueError("no such number")
        self.call()


def test_an_op_on_none_of_the_devices_is_refused(core: ov.Core) -> None:
    x = op.parameter([2], name="x")
    model = ov.Model([op.relu(x)], [x])
    graph = graph_of(model)
    with pytest.raises(PlacementError, match=f"op {graph.op_names[-1]!r} is on none of the devices"):
        compile_on(core, model, graph, [DeviceSpec("CPU", "CPU")], [*[0] * (graph.num_ops - 1), -1])


def test_a_reader_has_a_tensor_with_a_shape_of_its_own_where_sizes_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = ov.Tensor(np.ones((2, 3), dtype=np.float32))
    slot = Slot(Wiring([]))
    monkeypatch.setattr(slot, "_output", lambda *_: whole)
    found = slot._input(0, 0)
    whole.data[:] = 2.0
    whole.shape = [1, 3]
    assert (list(found.shape), list(whole.shape)) == ([2, 3], [1, 3])
    assert (found.data == 2.0).all()


def works(model: WorkConservingModel) -> bool:
    return bool(np.allclose(model(X)[0], expected(X), atol=1e-6))


@pytest.mark.parametrize("left_behind", [[], [None]])
def test_an_op_that_raises_is_named_with_its_device_and_not_run_again_behind_the_next_inference(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch, left_behind: list[None]
) -> None:
    monkeypatch.setattr(openvino_backend, "LEFT_BEHIND", left_behind)
    failing = Calls(failures=9)
    with compiled(core, python_model(second=failing)) as model:
        for _ in range(2):
            with pytest.raises(ExecutionError, match=r"on device CPU_1 failed: Node two .*no such number$"):
                model.infer_new_request(X)
        failing.failures = failing.count = 0
        assert works(model)
        assert failing.count == 1


@pytest.mark.parametrize(("left_behind", "count"), [([], 4), ([None], 2)])
def test_what_goes_well_when_it_is_done_again_has_gone_well(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch, left_behind: list[None], count: int
) -> None:
    monkeypatch.setattr(openvino_backend, "LEFT_BEHIND", left_behind)
    counted = Calls(failures=1)
    with compiled(core, python_model(first=counted)) as model:
        assert works(model)
        assert counted.count == count
        assert works(model)
        assert counted.count == count + 1


def test_closing_in_mid_run_cancels_it(core: ov.Core) -> None:
    gate = Gate()
    model = compiled(core, python_model(first=gate), limit_s=FOREVER_S)
    request = model.create_infer_request()
    request.start_async(X)
    assert gate.entered.wait(FOREVER_S)
    threading.Timer(0.05, gate.opened.set).start()
    model.close()
    with pytest.raises(ExecutionError, match="was closed while an inference ran"):
        request.wait()
    for again in (partial(request.infer, X), model.create_infer_request):
        with pytest.raises(ExecutionError, match="is closed; compile the model again"):
            again()


def test_a_device_that_does_not_compile_its_part_is_named_with_the_op(core: ov.Core) -> None:
    class UnknownOp(PythonOp):
        has_evaluate = bool  # no device can run it

    x = op.parameter([4], np.float32, name="x")
    unknown = UnknownOp([op.relu(x, name="relu")])
    unknown.set_friendly_name("two")
    model = ov.Model([op.result(unknown)], [x], "m")
    with pytest.raises(DeviceError, match=r"CPU_1 cannot compile op 'two': [^\n]*$"):
        compiled(core, model)


def test_what_was_cancelled_is_not_run_again_behind_the_next_inference(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_backend, "LEFT_BEHIND", [])
    gate = Gate()
    counted = Calls(gate)
    with compiled(core, python_model(first=counted)) as model:
        cancelled, other = model.create_infer_request(), model.create_infer_request()
        cancelled.start_async(X)
        assert gate.entered.wait(FOREVER_S)
        cancelled.cancel()
        gate.opened.set()
        with pytest.raises(ExecutionError, match="the inference of 'python' was cancelled"):
            cancelled.wait()
        counted.count = 0
        assert np.allclose(other.infer(X)[0], expected(X), atol=1e-6)
        assert counted.count == 1
        assert not openvino_backend.LEFT_BEHIND
        assert np.allclose(cancelled.infer(X)[0], expected(X), atol=1e-6)


@pytest.mark.parametrize(("left_behind", "size"), [([None], 4), ([], -1)])
def test_what_is_cancelled_in_a_thread_of_the_plugin_stops_between_two_ops_and_is_not_run_again(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch, left_behind: list[None], size: int
) -> None:
    monkeypatch.setattr(openvino_backend, "LEFT_BEHIND", left_behind)
    gate = Gate()
    first, second = Calls(gate), Calls()
    model = python_model(first, second, size)
    with hsdag.compile_work_conserving(model, placed(model, lambda *_: 0), core) as compiled:
        request = compiled.create_infer_request()
        request.start_async(X)
        assert gate.entered.wait(FOREVER_S)
        request.cancel()
        await_until(lambda: all(attempt.is_cancelled for attempt in compiled._engine._loop.scheduler.running))
        gate.opened.set()
        with pytest.raises(ExecutionError, match="was cancelled"):
            request.wait()
        await_until(lambda: not compiled._engine._loop.scheduler.running)
    assert (first.count, second.count) == (1, 0)


def test_a_job_that_gives_the_next_goes_on_in_its_thread_and_what_jobs_held_is_freed() -> None:
    class Held:
        """Something."""

    thread, idents, done, held = DeviceThread("d"), list[int](), threading.Event(), Held()
    freed = weakref.ref(held)

    def job(left: int) -> None:
        idents.append(threading.get_ident())
        thread.give(partial(job, left - 1) if left else done.set)

    thread.give(partial(gc.is_tracked, held))
    thread.give(partial(job, 1000))
    del held
    assert done.wait(FOREVER_S)
    assert freed() is None
    thread.give(partial(thread.close, FOREVER_S))  # which does not wait for itself
    assert (len(idents), len(set(idents))) == (1001, 1)


CPU, GPU, OTHER = DeviceSpec("CPU_0", "CPU"), DeviceSpec("GPU.0", "GPU.0"), DeviceSpec("GPU.1", "GPU.1")


def test_a_tensor_lives_where_all_who_use_it_can_reach_it() -> None:
    assert memory_of(CPU, (CPU,), False) is memory_of(CPU, (), True) is None
    assert memory_of(GPU, (GPU, GPU), False) == "device"
    for writer, readers, is_result in ((GPU, (GPU,), True), (CPU, (GPU,), False), (GPU, (OTHER,), False)):
        assert memory_of(writer, readers, is_result) == memory_of(GPU, (GPU, CPU), False) == "host"


def test_where_no_context_can_be_had_the_ordinary_tensor_stays() -> None:
    memory = SharedMemory(ov.Core(), (CPU, DeviceSpec("GPU.7", "GPU.7")))
    for readers in ([0], [1], [0]):
        assert memory.tensor(1, readers, False, ov.Type.f32, ov.Shape([2, 3])) is None


def test_what_a_tensor_is_used_by_decides_where_it_lives(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, list[int], bool]] = []
    monkeypatch.setattr(SharedMemory, "tensor", lambda *given: asked.append(given[1:4]))
    with compiled(core, python_model()) as model:
        assert works(model)
    assert sorted(asked) == [(0, [], True), (0, [1], False), (1, [], True)]


def convert(x: ov.Node) -> ov.Node:
    return op.convert(x, "f32")


def column(x: ov.Node) -> ov.Node:
    return op.reshape(x, op.constant(np.array([-1, 1])), special_zero=False)


BUILDERS: dict[str, Callable[[ov.Node], list[ov.Node]]] = {
    "a Convert": lambda x: [convert(x)],
    "behind a Reshape": lambda x: [convert(column(x))],
    "beside other work": lambda x: [convert(x), op.exp(convert(x))],
    "before other work": lambda x: [y := convert(x), op.exp(y)],
}
"""What the second device does; each gives its input, in some shape, or the exponential of that."""


@pytest.mark.parametrize("name", BUILDERS)
def test_a_part_that_passes_on_its_input_is_right_at_all_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "JOIN_TYPES", frozenset())
    monkeypatch.setattr(merging, "MOST_TRIALS", 0)
    x = op.parameter(ov.PartialShape([-1]), np.float32, name="x")
    model = ov.Model([op.result(y) for y in BUILDERS[name](op.tanh(x))], [x], "passing")
    with compile_placed(model, placed(model, lambda name, _: int(name != "x"))) as compiled:
        is_all = name in ("a Convert", "beside other work")
        assert any(part.model is None for part in compiled._backend._parts) is is_all
        request = compiled.create_infer_request()
        for size in (72, 48, *np.random.default_rng(0).integers(1, 2000, 20).tolist()):
            given = np.linspace(1.0, 2.0, size, dtype=np.float32)
            for k, found in enumerate(request.infer({0: given}).to_tuple()):
                wanted = np.exp(np.tanh(given)) if k else np.tanh(given)
                np.testing.assert_allclose(np.asarray(found).reshape(-1), wanted, atol=1e-5)


def test_outputs_that_the_plugin_passes_on_are_found() -> None:
    x, y, z = (op.parameter(ov.PartialShape([size]), np.float32) for size in (-1, -1, 3))
    nodes = [op.tanh(x), convert(y), convert(column(y)), convert(z)]
    model = ov.Model([op.result(node) for node in nodes], [x, y, z], "passing")
    assert passed_on(ov.Core().compile_model(model, "CPU")) == {1: 1}


ORDERS = [op.constant(np.array(order)) for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))]


def test_parts_in_bf16_read_the_mask_of_attention_as_the_f32_that_it_is_and_hand_over_all_digits() -> None:
    rng = np.random.default_rng(0)
    x, mask = op.parameter([1, 128, 64], np.float32, name="x"), op.parameter([1, 1, 1, 128], np.float32, name="mask")
    near = op.matmul(x, op.constant(rng.standard_normal((64, 64), np.float32)), False, False)
    bias = op.tanh(mask)
    heads = [op.transpose(op.reshape(near, op.constant(np.array([1, 128, 2, 32])), False), order) for order in ORDERS]
    scores = op.add(op.divide(op.matmul(*heads[:2], False, False), op.constant(np.float32(64))), bias)
    seen = op.matmul(op.softmax(scores, -1), heads[2], False, False)
    model = ov.Model([op.result(op.abs(seen))], [x, mask], "attention")
    near_ops = {each.get_friendly_name() for each in (x, mask, near, bias)}
    where = placed(model, lambda name, _: int(name not in near_ops), devices=in_bf16(2))
    given = {port.get_any_name(): rng.standard_normal(port.get_shape(), np.float32) for port in model.inputs}
    wanted = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(given)[0]
    with compile_placed(model, where) as compiled:
        found = compiled(given)[0]
        ports = [port for part in compiled._backend._parts for port in (*part.model.inputs, *part.model.outputs)]
    assert {port.get_element_type() for port in ports} == {ov.Type.f32}
    np.testing.assert_allclose(found, wanted, atol=0.02 * float(np.abs(wanted).max()))


def in_bf16(count: int) -> list[DeviceSpec]:
    return [DeviceSpec.parse(f"CPU_{d}=CPU[INFERENCE_PRECISION_HINT=bf16]") for d in range(count)]


@needs_bf16
def test_sums_that_run_along_a_model_lose_no_digits_between_parts_that_one_device_keeps() -> None:
    rng = np.random.default_rng(0)
    x = op.parameter([64, 64], np.float32)
    along = op.multiply(x, op.constant(np.float32(100)))
    for _ in range(4):
        weights = op.constant(rng.standard_normal((64, 64), np.float32) / 1000)
        along = op.add(along, op.matmul(op.tanh(along), weights, False, False))
    model = ov.Model([op.result(along)], [x], "along")
    given = [rng.standard_normal((64, 64), np.float32)]
    exact, alone = (ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": p})(given)[0] for p in ("f32", "bf16"))
    with compile_placed(model, placed(model, lambda _, s: s, devices=in_bf16(2))) as compiled:
        assert len(compiled.cut.subgraphs) > 4
        assert np.abs(compiled(given)[0] - exact).max() <= 1.5 * np.abs(alone - exact).max()

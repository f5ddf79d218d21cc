"""Faults of real inferences: the error names op and device, nothing is left behind, the next inference works."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hsdag
from hsdag.ir.errors import DeviceError, ExecutionError
from hsdag.runtime.executor import openvino_backend
from hsdag.runtime.executor.requests import WorkConservingModel
from tests.hsdag.runtime.executor.placing import placed
from tests.hsdag.runtime.executor.python_ops import Gate, PythonOp, device_of, expected, python_model

X = np.asarray([-1.0, 0.5, 1.0, 2.0], dtype=np.float32)
FOREVER_S = 60.0


def own_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("hsdag-"))


def wait_until(holds: Callable[[], bool]) -> None:
    patience_s = time.monotonic() + FOREVER_S
    while not holds():
        assert time.monotonic() < patience_s
        gc.collect()
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever goes wrong, threads end."""
    yield
    wait_until(lambda: not own_threads())


def compiled(core: ov.Core, model: ov.Model, limit_s: float | None = None) -> WorkConservingModel:
    return hsdag.compile_work_conserving(model, placed(model, device_of), core, time_limit_s=limit_s)


def fail_once(error: Exception) -> tuple[Callable[[], None], list[bool]]:
    """Raises while its flag stands."""
    stands = [True]

    def call() -> None:
        if stands[0]:
            raise error

    return call, stands


def works(model: WorkConservingModel) -> bool:
    return bool(np.allclose(model(X)[0], expected(X), atol=1e-6))


@pytest.mark.parametrize(("name", "device"), [("one", "CPU_0"), ("two", "CPU_1")])
def test_an_op_that_raises_is_named_with_its_device_and_the_next_inference_works(
    core: ov.Core, name: str, device: str
) -> None:
    call, stands = fail_once(ValueError("no such number"))
    with compiled(core, python_model(**{"one": {"first": call}, "two": {"second": call}}[name])) as model:
        for _ in range(2):
            with pytest.raises(ExecutionError, match=f"on device {device} failed: Node {name} .*no such number$"):
                model(X)
        stands[0] = False
        assert works(model)


def test_what_goes_well_when_it_is_done_again_has_gone_well(core: ov.Core) -> None:
    calls = iter([True])

    def call() -> None:
        if next(calls, False):
            raise ValueError("not yet")

    with compiled(core, python_model(first=call)) as model:
        assert works(model)
        assert works(model)


def test_a_device_that_hangs_is_named_and_awaited_until_it_comes_back(core: ov.Core) -> None:
    hanging = Gate()
    calls = iter([hanging])
    with compiled(core, python_model(second=lambda: next(calls, bool)()), limit_s=0.6) as model:
        first, second = model.create_infer_request(), model.create_infer_request()
        with pytest.raises(
            ExecutionError, match=r"took more than 0.6 s; it waited for 'two .. sigmoid' on device CPU_1"
        ):
            first.infer(X)
        assert not hanging.left.is_set()
        with pytest.raises(ExecutionError, match=r"took more than 0.6 s; it waited for its turn"):
            second.infer(X)
        hanging.opened.set()
        wait_until(lambda: not model._engine._loop.running)
        for request in (first, second):
            assert np.allclose(request.infer(2 * X)[0], expected(2 * X), atol=1e-6)


def test_what_hung_is_freed_when_it_comes_back(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        """Something that only the hanging inference holds."""

    monkeypatch.setattr(openvino_backend, "CLOSE_S", 0.0)
    gate, held = Gate(), Held()
    ref = weakref.ref(held)

    def call(_: Any = held) -> None:
        gate()

    with compiled(core, python_model(first=call), limit_s=0.05) as model, pytest.raises(ExecutionError, match="waited"):
        model(X)
    gate.opened.set()
    wait_until(lambda: not own_threads())
    python_model()  # other calls take the place of the one that holds it
    del call, held
    wait_until(lambda: ref() is None)


def test_closing_in_mid_run_cancels_it(core: ov.Core) -> None:
    gate = Gate()
    model = compiled(core, python_model(first=gate))
    request = model.create_infer_request()
    request.start_async(X)
    assert gate.entered.wait(FOREVER_S)
    threading.Timer(0.05, gate.opened.set).start()
    model.close()
    with pytest.raises(ExecutionError, match="was closed while an inference ran"):
        request.wait()
    with pytest.raises(ExecutionError, match="is closed; compile the model again"):
        request.infer(X)
    with pytest.raises(ExecutionError, match="is closed; compile the model again"):
        model.create_infer_request()


def test_a_device_that_does_not_compile_its_part_is_named_with_the_op(core: ov.Core) -> None:
    class UnknownOp(PythonOp):
        """An op that no device can run."""

        def has_evaluate(self) -> bool:
            return False

    x = op.parameter([4], np.float32, name="x")
    unknown = UnknownOp([op.relu(x, name="relu")])
    unknown.set_friendly_name("two")
    model = ov.Model([op.result(unknown)], [x], "m")
    with pytest.raises(DeviceError, match=r"CPU_1 cannot compile op 'two': [^\n]*$"):
        compiled(core, model)


def test_a_forgotten_model_ends_its_threads(core: ov.Core) -> None:
    model = compiled(core, python_model())
    model(X)
    assert own_threads()
    gc.disable()
    try:
        del model
        patience_s = time.monotonic() + FOREVER_S
        while own_threads():
            assert time.monotonic() < patience_s
            time.sleep(0.002)
    finally:
        gc.enable()


def test_a_request_that_is_forgotten_in_mid_run_ends_it_first_and_is_freed(core: ov.Core) -> None:
    gate, ended = Gate(), threading.Event()
    with compiled(core, python_model(first=gate)) as model:
        request = model.create_infer_request()
        request.set_callback(lambda _: ended.set())
        request.start_async(X)
        freed = weakref.ref(request)
        del request
        assert gate.entered.wait(FOREVER_S)
        gate.opened.set()
        assert ended.wait(FOREVER_S)
        wait_until(lambda: freed() is None)
        assert works(model)


@pytest.mark.parametrize("is_whole", [True, False])
def test_sizes_that_do_not_fit_are_refused(core: ov.Core, is_whole: bool) -> None:
    """With its tensors of open size within a part, and handed from part to part."""
    x, size = op.parameter([1, 8], np.float32, name="x"), op.parameter([2], np.int64, name="size")
    middle = op.sin(op.reshape(x, size, special_zero=False), name="middle")
    model = ov.Model([op.result(op.reshape(middle, [1, 8], special_zero=False))], [x, size], "m")
    values = np.arange(8, dtype=np.float32)[None]
    placement = placed(model, lambda name, _: int(name == "middle" and not is_whole))
    with hsdag.compile_work_conserving(model, placement, core) as compiled:
        request = compiled.create_infer_request()
        for good, bad in (([2, 4], [3, 5]), ([4, 2], [7, 1]), ([8, 1], [2, 3])):
            assert np.allclose(request.infer([values, np.asarray(good)])[0], np.sin(values), atol=1e-6)
            with pytest.raises(ExecutionError, match=r"failed: .*Reshape"):
                request.infer([values, np.asarray(bad)])


class Counted:
    """A call of an op that counts, after another call."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call, self.count = call, 0

    def __call__(self) -> None:
        self.count += 1
        self.call()


def test_what_failed_once_is_not_run_again_behind_the_next_inference(core: ov.Core) -> None:
    call, stands = fail_once(ValueError("no such number"))
    counted = Counted(call)
    with compiled(core, python_model(first=counted)) as model:
        failed, other = model.create_infer_request(), model.create_infer_request()
        with pytest.raises(ExecutionError, match="no such number"):
            failed.infer(X)
        stands[0], counted.count = False, 0
        assert np.allclose(other.infer(X)[0], expected(X), atol=1e-6)
        assert counted.count == 1


def test_what_was_cancelled_is_not_run_again_behind_the_next_inference(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_backend, "LEFT_BEHIND", [])
    gate = Gate()
    counted = Counted(gate)
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


def test_what_is_cancelled_in_a_thread_of_the_plugin_stops_between_two_ops_and_is_not_run_again(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_backend, "LEFT_BEHIND", [None])
    gate = Gate()
    first, second = Counted(gate), Counted(bool)
    model = python_model(first, second)
    with hsdag.compile_work_conserving(model, placed(model, lambda *_: 0), core) as compiled:
        request = compiled.create_infer_request()
        request.start_async(X)
        assert gate.entered.wait(FOREVER_S)
        request.cancel()
        wait_until(lambda: all(attempt.is_cancelled for attempt in compiled._engine._loop.running))
        gate.opened.set()
        with pytest.raises(ExecutionError, match="was cancelled"):
            request.wait()
        wait_until(lambda: not compiled._engine._loop.running)
    assert (first.count, second.count) == (1, 0)

"""Requests: a model compiled for work-conserving execution is used like any other, and says what does not fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from openvino import opset15

import hsdag
from hsdag.base.errors import ExecutionError, OptionError
from hsdag.runtime.executor import merging
from hsdag.runtime.executor.compiling import compile_placed
from hsdag.runtime.executor.requests import WorkConservingModel
from tests.hsdag.runtime.executor.placing import alternating, placed
from tests.hsdag.runtime.executor.python_ops import Gate, device_of, python_model

A = np.asarray([[-1, 0, 1], [2, 3, 4]], dtype=np.float32) / 4
B = np.asarray([[5, 4, 3], [2, 1, 0]], dtype=np.float32) / 4


@pytest.fixture(scope="module")
def model() -> ov.Model:
    """Two inputs a and b, and outputs far, sum and a itself, in another order than they are computed in."""
    a, b = (op.parameter([2, 3], np.float32, name=name) for name in "ab")
    a.get_output_tensor(0).set_names({"a", "first"})
    far = op.tanh(op.relu(op.tanh(a, name="t1"), name="r1"), name="t2")
    near = op.add(op.sigmoid(b, name="s1"), a, name="sum")
    results = [op.result(node) for node in (far, near, a)]
    for result, name in zip(results, ("far", "near"), strict=False):
        result.get_output_tensor(0).set_names({name})
    return ov.Model(results, [a, b], "sample")


@pytest.fixture(scope="module")
def compiled(core: ov.Core, model: ov.Model) -> Iterator[WorkConservingModel]:
    with hsdag.compile_work_conserving(model, alternating(model), core) as compiled:
        yield compiled


def test_requests_in_flight_and_calls_from_several_threads_keep_apart(compiled: WorkConservingModel) -> None:
    requests = [compiled.create_infer_request() for _ in range(6)]
    for k, request in enumerate(requests):
        request.start_async([A + k, B - k])

    def is_right(k: int) -> bool:
        return all(np.array_equal(compiled([A + k, B])[2], A + k) for _ in range(20))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, range(4)))
    for k, request in enumerate(requests):
        request.wait()
        assert np.allclose(request.results[1], 1 / (1 + np.exp(k - B)) + A + k, atol=1e-5)


def test_a_request_tells_how_long_it_took_and_what_ran_where(compiled: WorkConservingModel) -> None:
    request = compiled.create_infer_request()
    with pytest.raises(ExecutionError, match="no inference has ended on this request yet"):
        _ = request.latency
    request.infer([A, B])
    assert request.latency == 1e3 * request.times[1].max()
    assert len(request.timeline.ops.op) == len(compiled.cut.subgraphs)
    assert {"t1 .. t2", "s1 .. sum"} < set(request.timeline.op_names)
    assert sorted(request.timeline.op_types) == ["Result", "subgraph", "subgraph"]


def test_a_request_that_runs_takes_nothing_else(core: ov.Core) -> None:
    gate = Gate()
    model = python_model(first=gate)
    with hsdag.compile_work_conserving(model, placed(model, device_of), core) as compiled:
        request = compiled.create_infer_request()
        request.start_async(np.ones(4, np.float32))
        assert gate.entered.wait(30)
        assert not request.wait_for(1)
        again: list[Callable[[], None]] = [request.start_async, partial(request.set_input_tensor, ov.Tensor([1.0]))]
        for call in again:
            with pytest.raises(ExecutionError, match="request is already running; wait for it, or create another one"):
                call()
        gate.opened.set()
        assert request.wait_for(30_000)


def test_the_priority_of_the_placement_decides_who_goes_first(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST_TRIALS", 0)
    x = op.parameter([2], np.float32, name="x")
    model = ov.Model([op.result(op.tanh(op.relu(x, name=f"{name}1"), name=name)) for name in "pq"], [x], "m")
    for first, second in ("pq", "qp"):
        priority = {first: 0, f"{first}1": 0, second: 1, f"{second}1": 1}
        with compile_placed(model, placed(model, lambda *_: 0, 1, priority=priority), core=core) as compiled:
            request = compiled.create_infer_request()
            request.infer(np.ones(2, np.float32))
            order = [request.timeline.op_names[s][-1] for s in np.argsort(request.times[0])]
        assert order == [first, second]


def test_inputs_of_dynamic_shapes_take_another_size_every_time(core: ov.Core) -> None:
    x = op.parameter(ov.PartialShape([-1, 2]), np.float32, name="x")
    model = ov.Model([op.result(op.tanh(op.relu(x), name="tanh"))], [x], "m")
    request = hsdag.compile_work_conserving(model, alternating(model), core).create_infer_request()
    for rows in (3, 1, 0, 5):
        array = np.random.default_rng(rows).standard_normal((rows, 2)).astype(np.float32)
        np.testing.assert_allclose(request.infer(array)[0], np.tanh(np.maximum(array, 0)), atol=1e-6)
        np.testing.assert_allclose(request.infer(ov.Tensor(array))[0], np.tanh(np.maximum(array, 0)), atol=1e-6)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_no_time_is_refused(core: ov.Core, model: ov.Model, limit_s: float) -> None:
    with pytest.raises(OptionError, match="an inference may take a positive number of seconds, not"):
        hsdag.compile_work_conserving(model, alternating(model), core, time_limit_s=limit_s)


def test_a_callback_is_told_of_its_own_run_and_userdata_however_soon_it_ends(
    compiled: WorkConservingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller loses the processor between the start of a run and its own next step."""
    told, submit = SimpleQueue[tuple[object, float]](), compiled._engine.submit

    def submit_and_sleep(*args: Any, **options: Any) -> Any:
        run = submit(*args, **options)
        time.sleep(0.03)
        return run

    monkeypatch.setattr(compiled._engine, "submit", submit_and_sleep)
    request = compiled.create_infer_request()
    request.set_callback(lambda userdata: told.put((userdata, request.latency)), "mine")
    for userdata in (None, "other"):
        request.start_async([A, B], userdata)
        request.wait()
        assert told.get(timeout=60) == (userdata or "mine", request.latency)


def test_inputs_may_be_strings(core: ov.Core) -> None:
    text, x = op.parameter([2], ov.Type.string, name="text"), op.parameter([2, 3], np.float32, name="b")
    symbols = opset15.string_tensor_unpack(text).output(2)
    results = [op.result(symbols), op.result(op.relu(op.tanh(x, name="tanh"), name="relu"))]
    model = ov.Model(results, [text, x], "texts")
    with hsdag.compile_work_conserving(model, alternating(model), core) as compiled:
        for words in (["ab", "c"], ["d", "efg"]):
            found = compiled([np.array(words), B])
            assert bytes(found[0]).decode() == "".join(words)
            assert found[1] == pytest.approx(np.maximum(np.tanh(B), 0), abs=1e-6)

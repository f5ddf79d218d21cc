"""Copies of a model: each inference runs on one of them, on that which should end it first, and callers keep order."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.base.errors import ExecutionError, OptionError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.copies import Copy, compile_copies
from hsdag.ir.placement.homes import op_homes
from hsdag.ir.placement.placement import CopyRecord, Placement
from tests.placements import by_hand

SPECS = [DeviceSpec.parse(f"{name}=CPU[INFERENCE_NUM_THREADS=1]") for name in ("COPY_A", "COPY_B")]
X = np.asarray([[-1, 0, 2]], dtype=np.float32)


def sample(sizes: list[int]) -> ov.Model:
    x = op.parameter(sizes, np.float32, name="x")
    x.get_output_tensor(0).set_names({"x"})
    return ov.Model([op.result(op.relu(op.tanh(x)))], [x], "sample")


def test_results_are_those_of_the_model_from_many_threads(core: ov.Core) -> None:
    def work(k: int) -> None:
        request = copied.create_infer_request()
        for value in (X * (k + step) for step in range(8)):
            for found in (copied(value), request.infer({"x": value})):
                np.testing.assert_allclose(found[0], np.maximum(np.tanh(value), 0), atol=1e-6)

    with compile_copies(core, sample([1, 3]), [(spec, 2) for spec in SPECS]) as copied, ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(work, range(4)))) == 4


def test_a_callback_waits_for_those_before_it_though_they_end_later(core: ov.Core) -> None:
    with compile_copies(core, sample([1, 3]), [(spec, 1) for spec in SPECS]) as model:
        heard: list[int] = []
        model.set_callback(lambda _, userdata: heard.append(userdata))
        gate, real, waits = threading.Event(), model.submit, iter((True, False))

        def submit(run: Any) -> Any:
            is_first = next(waits)
            return real(lambda request: (not is_first or gate.wait(20), run(request)))

        model.submit = submit  # type: ignore[method-assign]
        first, second = model.start_async(X, 1), model.start_async(X, 2)
        assert np.allclose(second.result(20)[0], np.maximum(np.tanh(X), 0), atol=1e-6)
        assert heard == []
        gate.set()
        first.result(20)
        model.wait_all()
        assert heard == [1, 2]


@pytest.mark.parametrize(
    ("requests", "period_s", "expected"),
    [
        (2, (1.0, 3.0), [0, 0, 1]),  # the fast one ends a second at 2 s, and no third
        (2, (1.0, 1.9), [0, 1, 0]),
        (2, (3.0, 1.0), [1, 1, 0]),
        (2, (1.0, 0.0), [1, 1, 0]),  # of which nothing is known
        (1, (1.0, 3.5), [0, None, None, 1]),  # the fast one would end two more before the slow one ends one
        (1, (1.0, 3.0), [0, None, 1]),
    ],
)
def test_an_inference_starts_on_the_copy_that_should_end_it_first_or_waits_for_it(
    core: ov.Core, requests: int, period_s: tuple[float, float], expected: list[int | None]
) -> None:
    model = compile_copies(core, sample([1, 3]), [(spec, requests) for spec in SPECS])
    gate, began = threading.Event(), list[int | None]()
    for copy, seconds in zip(model.copies, period_s, strict=True):
        copy.period_s = seconds
    for _ in expected:
        busy = [copy.num_busy for copy in model.copies]
        model.submit(lambda _: gate.wait(20))
        more = [copy.num_busy - before for copy, before in zip(model.copies, busy, strict=True)]
        began.append(more.index(1) if any(more) else None)
    gate.set()
    model.close()
    assert began == expected


def test_how_long_a_copy_takes_is_a_mean_that_counts_those_beside_it(core: ov.Core) -> None:
    copy = Copy(core.compile_model(sample([1, 3]), "CPU"), 2)
    copy.learn(4.0, 2)
    assert copy.period_s == 2.0
    copy.learn(1.0, 1)
    assert copy.period_s == pytest.approx(1.8)
    assert copy.next_end_s == pytest.approx(1.8)
    assert copy.num_ended_before(3.7) == 2
    copy.threads.shutdown()


def test_a_failed_inference_or_callback_is_told_to_its_caller_alone_and_the_copy_works_on(core: ov.Core) -> None:
    with compile_copies(core, sample([1, 3]), [(SPECS[0], 1)]) as model:
        begin_s, failed = time.perf_counter(), model.submit(lambda _: 1 / 0)
        with pytest.raises(ExecutionError, match="division by zero"):
            failed.result(20)
        assert model.copies[0].period_s == 0.0
        assert np.allclose(model(X)[0], np.maximum(np.tanh(X), 0))
        with pytest.raises(OptionError, match="takes an array of shape"):
            model.start_async(np.zeros((2, 3), np.float32))
        heard: list[int] = []
        model.set_callback(lambda _, userdata: heard.append(10 // userdata))
        for userdata in (0, 2, 0, 5):
            model.start_async(X, userdata)
        with pytest.raises(ZeroDivisionError, match="by zero"):
            model.wait_all()
        model.wait_all()
        assert heard == [5, 2]
        assert 0 < model.copies[0].period_s < time.perf_counter() - begin_s
    with pytest.raises(ExecutionError, match="the model is closed"):
        model(X)


def test_results_of_any_size_are_kept_until_the_next_inference_of_the_request(core: ov.Core) -> None:
    with compile_copies(core, sample([-1, 3]), [(spec, 1) for spec in SPECS]) as model:
        one, two = model.create_infer_request(), model.create_infer_request()
        larger = np.vstack([X, X, X])
        assert one.infer(larger)[0].shape == (3, 3)
        assert two.infer(X)[0].shape == (1, 3)
        assert np.allclose(one.get_output_tensor(0).data, np.maximum(np.tanh(larger), 0))
        assert [one.infer(given)[0].shape for given in (X[:0], X)] == [(0, 3), (1, 3)]


def test_requests_of_a_model_with_state_stay_on_a_copy_each(core: ov.Core) -> None:
    x = op.parameter([1], np.float32, name="x")
    variable = op.read_value(op.constant(np.zeros(1, np.float32)), "v", np.float32, [1])
    total = op.add(variable, x)
    model = ov.Model([op.result(total)], [op.assign(total, "v")], [x], "sum")
    with compile_copies(core, model, [(spec, 1) for spec in SPECS]) as copied:
        requests = [copied.create_infer_request() for _ in range(2)]
        one = np.ones(1, np.float32)
        assert [requests[0].infer([one])[0][0] for _ in range(3)] == [1, 2, 3]
        assert requests[1].infer([one])[0][0] == 1
        assert [copy.num_owned for copy in copied.copies] == [1, 1]
        copied.copies[0].period_s, copied.copies[1].period_s = 1.0, 3.0
        for _ in range(2):
            copied.create_infer_request()
        assert [copy.num_owned for copy in copied.copies] == [3, 1]
        with pytest.raises(ExecutionError, match="keeps state"):
            copied.start_async([one])


def test_a_placement_of_copies_and_a_pipeline_is_one_model_that_keeps_each_callers_order(core: ov.Core) -> None:
    model, devices = sample([1, 3]), [*SPECS, DeviceSpec.parse("COPY_C=CPU[INFERENCE_NUM_THREADS=1]")]
    graph = graph_of(model)
    split = by_hand(graph, devices, ["COPY_A", "COPY_A", "COPY_B", "COPY_B"])
    copies = CopyRecord(device="COPY_C", requests=1), CopyRecord(affinity=split.affinity, requests=2)
    changes = {"version": 3, "executor": "work-conserving", "copies": copies}
    given = split.model_copy(update=changes).model_dump(exclude={"affinity"})
    placement = Placement.from_json(Placement.model_validate(given).to_json())
    assert placement.used_devices == ("COPY_A", "COPY_B", "COPY_C")
    assert op_homes(placement, graph) == [f"COPY_C+{device}" for device in split.affinity.values()]
    with placement.compile(core, model) as compiled:
        assert [copy.num_requests for copy in compiled.copies] == [1, 2]
        assert compiled.copies[1].compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
        heard: list[tuple[int, Any]] = []
        compiled.set_callback(lambda outputs, k: heard.append((k, float(outputs[0][0, 2]))))
        for k in range(20):
            compiled.start_async(X * k, k)
        compiled.wait_all()
        assert heard == [(k, pytest.approx(np.tanh(2 * k), abs=1e-6)) for k in range(20)]
        assert all(copy.period_s > 0 for copy in compiled.copies)

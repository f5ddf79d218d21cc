"""Problem files: a round trip, and one clear line for every mistake."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsdag.base.errors import FileFormatError
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json, read_problem, write_problem

GOOD: dict[str, Any] = {
    "format": "hsdag-problem",
    "version": 1,
    "name": "diamond",
    "source": "measured",
    "model": {"name": "net", "fingerprint": "sha256:" + 64 * "a"},
    "devices": [
        {"name": "gpu0", "memory_bytes": 16e9, "launch_s": 0.5, "power_w": 3.0, "plugin": "GPU"},
        {"name": "cpu", "memory_bytes": None},
    ],
    "links": {"bandwidth_bytes_per_s": [[None, 2.0], [None, 0]], "latency_s": [[None, 0.5], [0.25, -1]]},
    "op_overhead_s": 0.125,
    "slowdown": [[None, 1.5], [1.0, 0]],
    "ops": [
        {"name": "a", "type": "MatMul", "time_s": [1, 2], "output_bytes": 4, "weight_bytes": 7, "colocate": "s"},
        {"name": "b", "canonical": "n/b", "time_s": [1, None], "output_bytes": 4, "meta_op": "m", "role": "shard"},
        {"name": "c", "type": "Relu", "time_s": [3, 1], "output_bytes": 4, "colocate": "s", "expr": "relu(a)"},
    ],
    "edges": [{"src": "a", "dst": "b"}, {"src": "a", "dst": "c", "bytes": 2, "port": 1}],
}


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    document = copy.deepcopy(GOOD)
    change(document)
    return json.dumps(document)


def test_a_problem_survives_a_round_trip(tmp_path: Path) -> None:
    problem = problem_from_json(json.dumps(GOOD))
    write_problem(problem, tmp_path / "p.json")
    again = read_problem(tmp_path / "p.json")
    for field, value in vars(problem).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, getattr(again, field))
        else:
            assert value == getattr(again, field)
    assert problem_to_json(again) == problem_to_json(problem)
    assert problem_to_json(problem).count('"canonical"') == 1


def test_defaults_and_nulls_mean_what_the_format_says() -> None:
    problem = problem_from_json(json.dumps(GOOD))
    assert (problem.edge_bytes.tolist(), problem.edge_port.tolist()) == ([4.0, 2.0], [0, 1])
    assert np.isnan(problem.time_s[1, 1])
    assert problem.excess.tolist() == [[0.0, 0.5], [0.0, 0.0]]
    assert problem.memory_bytes.tolist() == [16e9, np.inf]
    assert problem.link_bandwidth_bytes_per_s[1, 0] == np.inf
    assert problem.op_overhead_s == 0.125
    assert problem.launch_s.tolist() == [0.5, 0.0]
    assert problem.power_w[0] == 3.0
    assert [device.plugin for device in problem.devices] == ["GPU", "cpu"]
    assert problem.canonical_names == ("a", "n/b", "c")
    labels = problem.labels
    assert (labels.types, labels.colocate) == (("MatMul", "", "Relu"), ("s", "", "s"))
    assert (labels.meta_ops, labels.roles) == (("", "m", ""), ("", "shard", ""))
    assert labels.expressions == ("", "", "relu(a)")


BAD: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("cycle", lambda d: d["edges"].append({"src": "b", "dst": "a"}), r"edges\[\d\]: the edges form a cycle: '.' -> "),
    ("self-loop", lambda d: d["edges"].append({"src": "b", "dst": "b"}), r"edges\[2\]: .* cycle: 'b' -> 'b'$"),
    ("unknown op", lambda d: d["edges"].append({"src": "a", "dst": "z"}), r"edges\[2\]\.dst: there is no op 'z'"),
    ("negative time", lambda d: d["ops"][1].update(time_s=[1, -1]), r"ops\[1\]\.time_s\[1\]: .*greater than or equal"),
    ("NaN", lambda d: d["ops"][0].update(time_s=[float("nan"), 1]), r"ops\[0\]\.time_s\[0\]: .*finite"),
    ("unsupported", lambda d: d["ops"][0].update(time_s=[None, None]), r"ops\[0\]\.time_s: no device supports op 'a'"),
    ("short row", lambda d: d["ops"][0].update(time_s=[1]), r"ops\[0\]\.time_s: 2 entries expected.*not 1"),
    ("too big", lambda d: d["ops"][1].update(output_bytes=17e9), r"ops\[1\]: 'b' needs 17000000000 bytes"),
    ("matrix", lambda d: d["links"].update(latency_s=[[0]]), r"links\.latency_s: 2 rows expected"),
    ("row", lambda d: d["links"].update(latency_s=[[0, 1], [1]]), r"links\.latency_s\[1\]: 2 entries expected"),
    ("latency", lambda d: d["links"]["latency_s"][0].__setitem__(1, -1), r"latency_s\[0\]\[1\]: .* or equal to 0"),
    ("rate", lambda d: d["links"]["bandwidth_bytes_per_s"][0].__setitem__(1, 0), r"\[0\]\[1\]: must be at least 1e-24"),
    ("null", lambda d: d["links"]["latency_s"][1].__setitem__(0, None), r"latency_s\[1\]\[0\]: .*a valid number"),
    ("speed-up", lambda d: d["slowdown"][0].__setitem__(1, 0.9), r"slowdown\[0\]\[1\]: .*greater than or equal to 1"),
    ("slow-downs", lambda d: d["slowdown"].pop(), r"slowdown: 2 rows expected, one per device, not 1"),
    ("no links", lambda d: d.pop("links"), r"links: missing, but there are 2 devices"),
    ("twin ops", lambda d: d["ops"][2].update(name="a"), r"ops\[2\]\.name: 'a' is already the name of ops\[0\]"),
    ("twin devices", lambda d: d["devices"][1].update(name="gpu0"), r"devices\[1\]\.name: 'gpu0' is already"),
    ("colocate", lambda d: [d["ops"][1].update(colocate="s"), d["ops"][2].update(time_s=[None, 1])],
     r"ops\[2\]\.colocate: no device supports all ops of the set 's'"),
    ("format", lambda d: d.update(format="x"), r"'format' is not 'hsdag-problem'"),
    ("version", lambda d: d.update(version=2), r"'version' is 2"),
    ("field", lambda d: d["ops"][0].update(tiem=1), r"ops\[0\]\.tiem: Extra inputs"),
    ("overhead", lambda d: d.update(transfer_overhead_s=-1), r"transfer_overhead_s: .*greater"),
    ("launch", lambda d: d["devices"][0].update(launch_s=-1), r"devices\[0\]\.launch_s: .*greater"),
    ("model", lambda d: d["model"].update(fingerprint="x"), r"model\.fingerprint: "),
    ("vast", lambda d: d["ops"][0].update(time_s=[1e300, 1]), r"ops\[0\]\.time_s\[0\]: .* or equal to 10{24}$"),
    ("vast link", lambda d: d["links"]["latency_s"][0].__setitem__(1, 1e300), r"\[0\]\[1\]: .* or equal to 10{24}$"),
    ("no ops", lambda d: d.update(ops=[], edges=[]), r"ops: .*at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_mistake_is_one_line_that_names_its_place(change: Callable[[dict[str, Any]], object], line: str) -> None:
    with pytest.raises(FileFormatError, match=line) as caught:
        problem_from_json(edited(change), "p.json")
    assert str(caught.value).startswith("p.json: ")
    assert "\n" not in str(caught.value)


def test_weights_that_fit_nowhere_together_are_refused_and_ops_may_fill_all_devices() -> None:
    def shrink(d: dict[str, Any], last: int = 13) -> None:
        d["devices"] = [{"name": "x", "memory_bytes": 8}, {"name": "y", "memory_bytes": last}]
        for op in d["ops"]:
            op.update(weight_bytes=7, output_bytes=1, time_s=[1, None])

    problem_from_json(edited(shrink))
    with pytest.raises(FileFormatError, match=r"devices: the weights of all ops take 21 bytes.* have 20"):
        problem_from_json(edited(lambda d: shrink(d, 12)))


def test_one_device_needs_no_links() -> None:
    def alone(d: dict[str, Any]) -> None:
        d.update(devices=d["devices"][:1], links=None, slowdown=None)
        for op in d["ops"]:
            op["time_s"] = op["time_s"][:1]

    assert problem_from_json(edited(alone)).link_bandwidth_bytes_per_s.tolist() == [[np.inf]]

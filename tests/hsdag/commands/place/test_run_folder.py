"""Run folders: what is kept, what a kill may cost, what a resumed run must match, and what is read of them later."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hsdag.base.errors import FileFormatError, OutputError, SearchError
from hsdag.commands.place import run_folder
from hsdag.commands.place.records import PlanRecord
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RunFolder, RunRecord
from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement.placement import ModelRecord
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Event

RECORD = RunRecord(
    model=ModelRecord(name="m", fingerprint="sha256:" + "0" * 64),
    devices=[DeviceSpec(name="A", plugin="CPU"), DeviceSpec(name="B", plugin="CPU")],
    method="hsdag",
    preset="default",
    seed=0,
    objective="latency",
    num_units=3,
)
EVENTS = [
    Event(Plan(np.array([0, 1, 1]), np.array([2, 0, 1])), Score(0.25), 1.5),
    Event(Plan(np.array([1, 1, 1])), Score(failure="the worker was ended by SIGSEGV"), 2.5),
    Event(Plan(np.array([0, 1, 0])), Score(0.5), 3.5),
]


def started(path: Path) -> RunFolder:
    folder = RunFolder.create(path / "run", RECORD)
    for event in EVENTS:
        folder.append(event)
    return folder


def same(left: list[Event], right: list[Event]) -> bool:
    return [(e.plan, e.score, e.elapsed_s) for e in left] == [(e.plan, e.score, e.elapsed_s) for e in right]


def test_a_line_cut_short_by_a_kill_is_dropped_and_the_file_goes_on(tmp_path: Path) -> None:
    folder = started(tmp_path)
    content = folder.events_path.read_bytes()
    folder.events_path.write_bytes(content[:-7])
    assert same(folder.events, EVENTS[:2])
    folder.append(EVENTS[2])
    assert same(folder.events, EVENTS)


def test_a_full_disk_under_a_run_folder_costs_the_event_in_flight_and_the_run_goes_on(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunFolder.create(tmp_path / "run", RECORD) as folder:
        folder.append(EVENTS[0])
        size_bytes = folder.events_path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 7, before[1]))
        with pytest.raises(OutputError, match=r"events\.jsonl cannot be written: File too large"):
            folder.append(EVENTS[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert folder.events_path.stat().st_size == size_bytes + 7
    with RunFolder.resume(tmp_path / "run", RECORD) as folder:
        assert same(folder.events, EVENTS[:1])
        folder.append(EVENTS[1])
        assert same(folder.events, EVENTS[:2])


def test_a_kill_while_a_folder_is_made_leaves_nothing_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_path: Path, _content: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            RunFolder.create(tmp_path / "run", RECORD)
    assert not (tmp_path / "run").exists()
    assert RunFolder.create(tmp_path / "run", RECORD).events == []


@pytest.mark.parametrize(("count", "written"), [(36, '"0z9"'), (37, "[0,35,9]")])
def test_any_number_of_devices_can_be_written_and_ranks_are_as_many_as_units(count: int, written: str) -> None:
    plan = Plan(np.array([0, 35, 9]))
    record = PlanRecord.of(plan, count)
    assert f'"placement":{written}' in record.model_dump_json()
    assert record.plan(3, count, "here") == plan
    for wrong in (
        record.model_copy(update={"order": [0, 1]}),
        PlanRecord(placement=[0, 1, count]),
        PlanRecord(placement=[-1, 0, 0]),
    ):
        with pytest.raises(FileFormatError, match="here: the placement does not fit"):
            wrong.plan(3, count, "here")


def test_simulated_candidates_come_back_but_for_a_line_cut_short(tmp_path: Path) -> None:
    folder, plans = started(tmp_path), [Plan(np.array([0, 1, 0]), np.array([2, 0, 1])), Plan(np.array([1, 0, 0]))]
    assert folder.kept == []
    folder.keep(plans)
    assert folder.kept == plans
    folder.candidates_path.write_bytes(folder.candidates_path.read_bytes()[:-2])
    assert folder.kept == plans[:1]


@pytest.mark.parametrize(
    ("events", "line", "said"),
    [
        (True, '{"placement": "01", "value": 1.0, "elapsed_s": 1.0}', "line 4: the placement does not fit"),
        (True, '{"placement": "010", "elapsed_s": 1.0}', "line 4: not an event"),
        (True, '{"placement": "010", "value": 1.0, "failure": "x", "elapsed_s": 1.0}', "line 4: not an event"),
        (False, '{"placement": "0?1"}', r"candidates\.jsonl, line 1: the placement does not fit"),
        (False, "{}", "line 1: not a plan of a search"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, events: bool, line: str, said: str) -> None:
    folder = started(tmp_path)
    with (folder.events_path if events else folder.candidates_path).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(FileFormatError, match=said):
        _ = folder.events if events else folder.kept


def test_the_policy_comes_back_bit_for_bit_or_is_said_to_be_damaged(tmp_path: Path) -> None:
    folder = started(tmp_path)
    assert folder.state.load() is None
    tensors = {"w": torch.randn(3, 4), "g": torch.arange(5, dtype=torch.uint8)}
    folder.state.save(tensors, {"updates": 3, "name": "x"})
    loaded, state = folder.state.load() or ({}, {})
    assert state == {"updates": 3, "name": "x"}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    folder.state.path.write_bytes(b"not tensors")
    with pytest.raises(FileFormatError, match="damaged"):
        folder.state.load()


def test_a_resumed_run_has_no_result_until_it_ends_again(tmp_path: Path) -> None:
    """That of the part before is no longer how the search ended, whatever becomes of the rest."""
    started(tmp_path)
    (tmp_path / "run" / "result.json").write_text("{}")
    RunFolder.resume(tmp_path / "run", RECORD)
    assert not (tmp_path / "run" / "result.json").exists()
    assert same(RunFolder.resume(tmp_path / "run", RECORD).events, EVENTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "another seed"),
        ({"method": "best-device"}, "another method"),
        ({"num_units": 4}, "other placement units"),
        ({"objective": "throughput"}, "another objective"),
        ({"num_units": 4, "pins": ("a=B",)}, "other pins"),
        ({"max_difference": 1e-3}, "another max_difference"),
        ({"executor": "work-conserving"}, "another executor"),
    ],
)
def test_a_run_about_something_else_is_not_resumed(tmp_path: Path, change: dict[str, object], said: str) -> None:
    started(tmp_path)
    with pytest.raises(SearchError, match=f"is a search with {said}"):
        RunFolder.resume(tmp_path / "run", RECORD.model_copy(update=change))


def test_what_is_no_run_folder_is_never_moved(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(OutputError, match="is not a run folder"):
        RunFolder.create(tmp_path / "precious", RECORD)
    assert (tmp_path / "precious").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be created"):
        RunFolder.create(tmp_path / "file" / "run", RECORD)
    with pytest.raises(SearchError, match=r"precious is no run folder"):
        RunFolder.load(tmp_path / "precious")


def test_two_searches_never_share_a_folder(tmp_path: Path) -> None:
    first = started(tmp_path)
    with pytest.raises(SearchError, match="another search is running"):
        RunFolder.create(tmp_path / "run", RECORD)
    with pytest.raises(SearchError, match="another search is running"):
        RunFolder.resume(tmp_path / "run", RECORD)
    assert same(first.events, EVENTS)
    with first:
        pass  # ended, whatever still refers to the folder
    with RunFolder.create(tmp_path / "run", RECORD):
        pass  # beside the one before
    assert same(RunFolder.resume(tmp_path / "run.1", RECORD).events, EVENTS)
    assert RunFolder.resume(tmp_path / "run", RECORD).events == []


@pytest.fixture
def run(kept_search: PlaceResult) -> RunFolder:
    return RunFolder.load(kept_search)


def test_the_answer_and_its_samples_are_kept(run: RunFolder, kept_search: PlaceResult) -> None:
    assert run.result is not None
    assert run.placement == kept_search.placement
    assert run.result.model_dump_json() == kept_search.model_dump_json()
    for row in kept_search.rows:
        assert sum(len(r) for r in run.result.samples[row.name]) == row.runs
    assert run.result.costs is not None
    is_searched = run.executor == "work-conserving"  # HETERO may have run the answer faster, by its own costs
    assert isinstance(run.costs, WorkConservingCosts if is_searched else HeteroCosts)
    if isinstance(run.costs, WorkConservingCosts):
        assert run.costs.parameters.tolist() == run.result.costs.parameters
    assert run.problem.devices == ("CPU_0", "CPU_1")
    assert all(run.problem.is_legal(e.plan.placement) for e in run.events if e.score.failure is None)


def test_a_split_that_hetero_runs_has_the_costs_of_hetero(kept_search: PlaceResult) -> None:
    kept = RunFolder.load(kept_search)
    ops = list(kept_search.placement.names)
    affinity = {op: f"CPU_{int(k > len(ops) // 2)}" for k, op in enumerate(ops)}
    changes = {"executor": "hetero", "affinity": affinity, "shards": None, "version": 2}
    placement = kept_search.placement.model_copy(update=changes)
    kept.__dict__["result"] = kept_search.model_copy(update={"placement": placement})
    assert kept.record.executor == "auto"
    assert kept.executor == "hetero"
    assert isinstance(kept.costs, HeteroCosts)
    assert kept.problem.ops is kept.costs


def test_a_run_that_did_not_end_is_read_and_left_as_it_is(run: RunFolder, tmp_path: Path) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / "result.json").unlink()
    events = copy / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-3])
    content = events.read_bytes()
    found = RunFolder.load(copy)
    assert (found.result, len(found.events)) == (None, len(run.events) - 1)
    assert events.read_bytes() == content


def test_a_folder_that_holds_no_search_and_one_of_another_model_are_named(run: RunFolder, tmp_path: Path) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    text = (copy / "run.json").read_text()
    (copy / "run.json").write_text(text.replace(f'"num_units": {run.record.num_units}', '"num_units": 1'))
    (copy / "events.jsonl").unlink()
    with pytest.raises(FileFormatError, match=r"placement units, but run\.json was about 1"):
        _ = RunFolder.load(copy).problem

"""The zoo and the workloads by name: what is refused, which files are written, and texts that say all of a workload."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest

from hsdag.base.errors import HsdagError, ModelError, OptionError, OutputError
from hsdag.models import build_model, find_workload, save_model_files
from hsdag.models.registry import names_workload, workload_called


@pytest.mark.parametrize(
    ("name", "seed", "error", "words"),
    [
        (
            "resnet51",
            0,
            ModelError,
            "no model 'resnet51'; choose one of resnet50, .*; workloads are",
        ),
        ("tiny_resnet", -1, OptionError, r"seed must be between 0 and 2\^63 - 1, not -1"),
        ("tiny_resnet", 2**63, OptionError, r"seed must be between 0 and 2\^63 - 1, not 9223372036854775808"),
    ],
)
def test_a_model_that_is_not_there_is_refused(name: str, seed: int, error: type[HsdagError], words: str) -> None:
    with pytest.raises(error, match=words):
        build_model(name, seed)


@pytest.mark.parametrize("name", ["tiny_stateful_moe_int4", pytest.param("tiny_bert", marks=pytest.mark.slow)])
def test_files_hold_the_built_model_and_one_seed_always_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    first, second = (save_model_files(name, tmp_path / f"{n}.xml", seed=3) for n in ("first", "second"))
    for suffix in (".xml", ".bin"):
        assert first.with_suffix(suffix).read_bytes() == second.with_suffix(suffix).read_bytes()
    names = [[op.get_friendly_name() for op in m.get_ordered_ops()] for m in (ov.Core().read_model(first),
                                                                               build_model(name, seed=3))]  # fmt: skip
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        ("net", OptionError, r"must end in \.xml"),
        ("net.XML", OptionError, r"must end in \.xml"),
        ("absent/net.xml", OutputError, "there is no folder .*absent"),
        ("net.xml", OutputError, "is a folder"),
    ],
)
def test_a_place_where_no_file_can_be_is_refused_before_anything_is_built(
    place: str, error: type[HsdagError], words: str, tmp_path: Path
) -> None:
    (tmp_path / "net.xml").mkdir()
    with pytest.raises(error, match=words):
        save_model_files("bert_base_uncased", tmp_path / place)


@pytest.mark.parametrize(
    ("text", "devices", "full", "rows"),
    [
        ("chainmm[size=64;devices=2]", 5, "chainmm[size=64;devices=2]", 32),
        ("ffnn[size=64]", 1, "ffnn[size=64;devices=2]", 32),
        ("chainmm[size=640]", 5, "chainmm[size=640;devices=5]", 128),
    ],
)
def test_a_text_names_a_workload_for_the_devices_at_hand_or_two_at_least(
    text: str, devices: int, full: str, rows: int
) -> None:
    found, workload = workload_called(text, devices)
    assert (found, workload.graph.shape_of(0)[0]) == (full, rows)


@pytest.mark.parametrize(
    ("text", "is_one"), [("chainmm", True), ("ffnn[size=8]", True), ("model.xml", False), ("gpt2[size=8]", False)]
)
def test_names_of_workloads_are_told_from_files(text: str, is_one: bool) -> None:
    assert names_workload(text) is is_one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chainmm[64]", "'64' is not of the form OPTION=VALUE"),
        ("chainmm[size=0]", "the size of chainmm must be at least 1, not 0"),
        ("chain[seed=-1]", r"the seed must be between 0 and 2\^63 - 1, not -1"),
        ("chainmm[size=63]", "chainmm over 2 devices: "),
        ("chainmm[devices=1]", "chainmm is sharded over 2 to 64 devices, not 1"),
        ("chainmm[devices=65]", "chainmm is sharded over 2 to 64 devices, not 65"),
        ("transformer[size=8]", "transformer does not take 'size'; it takes devices, seed"),
        ("random-wired[family=xx]", "unknown family 'xx'"),
        ("chainm", "no workload 'chainm'; choose one of chainmm, ffnn"),
    ],
)
def test_a_wrong_workload_or_option_is_named(text: str, message: str) -> None:
    with pytest.raises(HsdagError, match=message):
        workload_called(text, 2)


def test_a_workload_is_built_for_up_to_64_devices() -> None:
    assert find_workload("chainmm").build(64, {"size": 128}).graph.num_ops == 26 * 64 + 8

"""The zoo by name: what it lists, what it refuses, and which files it writes."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest

from hsdag.ir.errors import ModelError, OptionError, OutputError
from hsdag.models import build_model, save_model_files


def test_unknown_name_is_answered_with_the_choices() -> None:
    with pytest.raises(ModelError, match=r"no model 'resnet51'; choose one of resnet50, inception_v3, bert"):
        build_model("resnet51")


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seed_outside_its_range_is_refused(seed: int) -> None:
    with pytest.raises(OptionError, match=rf"seed must lie in 0\.\.2\*\*63-1, got {seed}"):
        build_model("tiny_resnet", seed)


def test_saved_files_hold_the_built_model(tmp_path: Path) -> None:
    path = save_model_files("tiny_bert", tmp_path / "bert.xml", seed=3)
    saved, built = ov.Core().read_model(path), build_model("tiny_bert", seed=3)
    assert [op.get_friendly_name() for op in saved.get_ordered_ops()] == [
        op.get_friendly_name() for op in built.get_ordered_ops()
    ]


@pytest.mark.parametrize("name", ["net", "net.XML"])
def test_suffix_other_than_xml_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"must end in \.xml"):
        save_model_files("tiny_resnet", tmp_path / name)


@pytest.mark.parametrize(
    ("place", "words"),
    [("absent/net.xml", "there is no folder .*absent; create it first"), ("net.xml", "found a folder")],
)
def test_a_place_where_no_file_can_be_is_refused_before_anything_is_built(
    place: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "net.xml").mkdir()
    with pytest.raises(OutputError, match=words):
        save_model_files("bert_base_uncased", tmp_path / place)


def test_failed_write_is_one_line_and_keeps_the_old_files(tmp_path: Path) -> None:
    (tmp_path / "net.xml").write_text("old")
    (tmp_path / "net.bin").mkdir()  # the weights cannot take this place
    with pytest.raises(OutputError, match=r"\A[^\n]*net\.xml cannot be written: [^\n]*\Z"):
        save_model_files("tiny_resnet", tmp_path / "net.xml")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["net.bin", "net.xml"]
    assert (tmp_path / "net.xml").read_text() == "old"

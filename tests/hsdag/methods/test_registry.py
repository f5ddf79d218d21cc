"""Methods by name, with their own hyper-parameters and presets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from hsdag.base.errors import OptionError
from hsdag.methods import PLUG_INS, method_modules, method_names
from hsdag.methods.anneal.sa import SaOptions
from hsdag.methods.learned.hsdag.network import HsdagConfig
from hsdag.methods.learned.options import Reward
from hsdag.methods.registry import begun_with, changed_options, find_method, find_preset, make_placer, parse_changes
from hsdag.runtime.objectives import THROUGHPUT
from hsdag.search.options import PlaceOptions


@pytest.mark.parametrize("method", method_names())
def test_a_method_is_found_by_its_name_and_has_a_default_preset(method: str) -> None:
    placer = find_method(method)
    assert (placer.name, placer.__module__) == (method, method_modules()[method])
    assert "default" in placer.presets(is_cheap=True)
    assert make_placer(method).options == placer.presets(is_cheap=False)["default"].options


def test_unknown_names_are_answered_with_the_choices() -> None:
    with pytest.raises(OptionError, match="unknown method 'luck'; choose one of auto, beam, best-device, "):
        find_method("luck")
    with pytest.raises(OptionError, match="unknown method 'heff', perhaps 'heft'; choose one of auto, "):
        find_method("heff")
    with pytest.raises(OptionError, match="method 'heft' has no preset 'paper'; choose one of default"):
        make_placer("heft", "paper")
    with pytest.raises(OptionError, match="method 'ea' has no hyper-parameter 'heat'; choose one of patience, "):
        make_placer("ea", changes={"heat": "1"})
    with pytest.raises(OptionError, match="method 'heft' has no hyper-parameter 'x'; it has none"):
        make_placer("heft", changes={"x": "1"})
    with pytest.raises(OptionError, match="method 'heft' uses no policy: leave out init, or choose the method"):
        begun_with("heft", "p.safetensors", {})
    with pytest.raises(OptionError, match="init and settings initial both give a policy; leave one out"):
        begun_with("auto", "p.safetensors", {"initial": "other.safetensors"})
    assert begun_with("auto", "p.safetensors", {"without": "sa"}) == {"without": "sa", "initial": "p.safetensors"}


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with three entry points: a method, none, and a module that is not there."""
    text = "from hsdag.methods.lists.baselines import BestDevicePlacer\n\n\nclass LuckPlacer(BestDevicePlacer):\n"
    (tmp_path / "lucky.py").write_text(f'{text}    name = "luck"\n')
    (tmp_path / "lucky-1.dist-info").mkdir()
    points = "luck = lucky:LuckPlacer\nnone = lucky\nmissing = nowhere_to_be_found\n"
    (tmp_path / "lucky-1.dist-info" / "entry_points.txt").write_text(f"[{PLUG_INS}]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    method_modules.cache_clear()
    yield
    method_modules.cache_clear()


@pytest.mark.usefixtures("plug_ins")
def test_a_method_of_another_package_is_found_by_its_entry_point() -> None:
    assert find_method("luck").__name__ == "LuckPlacer"
    assert "luck" in method_names()
    with pytest.raises(OptionError, match="plug-in lucky has no class, derived from Placer, whose name is 'none'"):
        find_method("none")
    with pytest.raises(OptionError, match="method 'missing' does not load: No module named 'nowhere_to_be_found'"):
        find_method("missing")
    with pytest.raises(OptionError, match="unknown method 'lucky', perhaps 'luck'"):
        find_method("lucky")


def test_the_default_of_hsdag_suits_the_evaluations_and_the_paper_measures() -> None:
    assert find_preset("hsdag", "default", is_cheap=True).options == HsdagConfig.default(is_cheap=True)
    assert find_preset("hsdag", "default").options == HsdagConfig()
    paper = find_preset("hsdag", "paper", is_cheap=True)
    assert (paper.options, paper.reward, paper.max_share) == (HsdagConfig.paper(), "measured", 1.0)
    assert find_preset("best-device", "default").reward == "measured"
    assert find_preset("heft", "default").reward == "hybrid"


def test_values_are_read_by_the_type_of_their_field() -> None:
    changes = parse_changes(["hidden=64", "learning_rate=1e-2", "residual=false", "reward=inverse", "clip=none"])
    config = changed_options("hsdag", HsdagConfig(), changes)
    assert (config.hidden, config.learning_rate, config.residual, config.reward) == (64, 0.01, False, Reward.INVERSE)
    assert config.clip is None
    assert changed_options("sa", SaOptions(), {}) == SaOptions()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hidden=wide", "settings hidden=wide: .*integer"),
        ("reward=praise", "settings reward=praise: .*'inverse', 'negative', 'square-root' or 'log-ratio'"),
        ("dropout=2", "option dropout must be in"),
        ("hidden", "'hidden' is not of the form NAME=VALUE"),
        ("hidden=1 hidden=2", "settings gives hidden twice"),
    ],
)
def test_a_value_that_does_not_suit_is_named(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        changed_options("hsdag", HsdagConfig(), parse_changes(text.split()))


@pytest.mark.parametrize("method", method_names())
def test_no_method_takes_a_number_that_is_not_finite(method: str) -> None:
    options = find_preset(method, "default").options
    for name, hint in get_type_hints(type(options)).items():
        for number in ("inf", "nan") if float in (hint, *get_args(hint)) else ():
            with pytest.raises(OptionError):
                changed_options(method, options, {name: number})


def test_what_a_method_cannot_do_is_refused_before_any_work() -> None:
    with pytest.raises(OptionError, match="'rules' is for objective latency, not throughput"):
        PlaceOptions(method="rules", objective=THROUGHPUT).check()

"""Scenarios: their text, and how they fit a model."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.base.errors import ModelError, OptionError
from hsdag.ir.graph.reader import fix_shapes
from hsdag.ir.graph.scenario import Scenario, parse_scenarios, shares
from tests.hsdag.ir.growing import chain_model, growing_model


@pytest.mark.parametrize(
    "text", ["x[1,128]", "x[1,128]@0.25", "x[1,16],y[]>x[1,1],y[0]@3", "a[4]>a[2]>a[1]", "[1,3]", "x>y[1]>x>y[2]"]
)
def test_the_text_of_a_scenario_reads_as_the_same_scenario(text: str) -> None:
    scenario = Scenario.parse(text)
    assert scenario.text == text
    assert Scenario.parse(scenario.text) == scenario


@pytest.mark.parametrize(
    "text", ["", "x", "x[1,2]>", ">x[1]", "x[1]@", "x[1]@0", "x[1]@-2", "x[1]@nan", "x[1]@inf", "x[1]@2@3", "x[-1]"]
)
def test_a_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="data_shape"):
        Scenario.parse(text)


def test_tokens_after_others_follow_an_inference_of_the_same_length_and_weights_are_relative() -> None:
    alone, short, steady = parse_scenarios((), "128,64+16@2,1+1024")
    lengths = [[shapes["input_ids"][1] for shapes in each.inferences] for each in (alone, short, steady)]
    seen = [[shapes["attention_mask"][1] for shapes in each.inferences] for each in (alone, short, steady)]
    assert lengths == [[128], [16, 64], [1023, 1, 1]]
    assert seen == [[128], [16, 80], [1023, 1024, 1025]]
    assert short.weight == 2.0
    assert shares(parse_scenarios(["x[1]@3", "x[2]"], None)).tolist() == [0.75, 0.25]


@pytest.mark.parametrize("text", ["", "0", "1+", "1+2+3", "one", "1,,2", "1@0", "1+-3", "99999999999"])
def test_tokens_of_another_form_are_refused_and_those_beside_shapes(text: str) -> None:
    with pytest.raises(OptionError, match="tokens"):
        parse_scenarios((), text)
    with pytest.raises(OptionError, match="give one of the two"):
        parse_scenarios(["x[1]"], "128")


def test_inputs_of_fixed_shapes_need_no_shape_and_tokens_name_inputs_that_are_missing() -> None:
    fixed = growing_model()
    fixed.reshape([1, 4])
    assert Scenario(({},)).of(fixed).inferences == ({"input_ids": (1, 4)},)
    assert Scenario.parse("[1,32]").of(chain_model()).inferences == ({"x": (1, 32)},)
    (tokens,) = parse_scenarios((), "3")
    assert tokens.of(growing_model()).inferences == ({"input_ids": (1, 3)},)
    with pytest.raises(ModelError, match="tokens is for models with an input input_ids, and this one's are x"):
        tokens.of(chain_model())
    other = op.parameter([-1, 4], np.float32, name="image")
    inputs = [op.parameter([-1, -1], np.int64, name="input_ids"), other]
    with pytest.raises(ModelError, match=r"tokens 3 gives no shape for input 'image', .*; give all shapes"):
        tokens.of(ov.Model([op.result(each) for each in inputs], inputs, "sees"))
    with pytest.raises(ModelError, match=r"say how many tokens are typical, such as tokens 128,1\+1024"):
        fix_shapes(growing_model(), {})


def test_tokens_are_vectors_to_a_network_that_is_given_more_than_text() -> None:
    vectors, mask = op.parameter([-1, -1, 64], np.float32, name="inputs_embeds"), op.parameter([-1, -1], np.int64)
    mask.output(0).get_tensor().set_names({"attention_mask"})
    model = ov.Model([op.result(vectors), op.result(mask)], [vectors, mask], "sees")
    (tokens,) = parse_scenarios((), "2+2")
    earlier, timed = tokens.of(model).inferences
    assert earlier == {"inputs_embeds": (1, 2, 64), "attention_mask": (1, 2)}
    assert timed == {"inputs_embeds": (1, 2, 64), "attention_mask": (1, 4)}
    with pytest.raises(ModelError, match="such as tokens 128"):
        fix_shapes(model, {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("y[1,32]", "gives no shape for input 'x'"),
        ("x[1,32],y[2]", "gives a shape for input 'y', but the model's are x"),
        ("x[1,31]", r"the model's input takes \[\?,32\]"),
        ("x[1,1,32]", r"the model's input takes \[\?,32\]"),
    ],
)
def test_shapes_that_do_not_fit_the_model_are_refused(text: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        Scenario.parse(text).of(chain_model())

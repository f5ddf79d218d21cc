"""The page beside an exported model: what it has other programs do is what they can do."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
import openvino as ov

from hsdag.exports.usage import Usage, served_config
from hsdag.ir.device import hetero_properties, parse_devices
from hsdag.ir.graph.build import graph_of
from hsdag.models import build_model
from tests.placements import halves

PROPERTY = {"type": ["string", "boolean", "number"]}
SERVED = {
    "type": "object",
    "required": ["model_config_list"],
    "additionalProperties": False,
    "properties": {
        "model_config_list": {
            "items": {
                "required": ["config"],
                "maxProperties": 1,
                "properties": {
                    "config": {
                        "required": ["name", "base_path"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"},
                            "base_path": {"type": "string"},
                            "target_device": {"type": "string"},
                            "nireq": {"type": "integer", "minimum": 0},
                            "plugin_config": {"type": "object", "additionalProperties": PROPERTY},
                        },
                    }
                },
            }
        }
    },
}
"""As much of what Model Server 2026 asks of a config.json as we write."""


def test_model_server_takes_properties_of_single_devices_and_openvino_reads_them_as_given(core: ov.Core) -> None:
    devices = parse_devices("CPU_0=CPU[INFERENCE_NUM_THREADS=1],CPU_1=CPU[INFERENCE_NUM_THREADS=2]")
    model, properties = build_model("tiny_resnet"), hetero_properties(devices)
    placement = halves(graph_of(model), devices)
    written = served_config(Usage("m", "model.xml", "HETERO:CPU_0,CPU_1", properties), "m")
    jsonschema.validate(written, SERVED)
    config = written["model_config_list"][0]["config"]
    for device in devices:
        replace(device, properties={}).register(core)
    compiled = core.compile_model(placement.apply(model), config["target_device"], config["plugin_config"])
    found = compiled.get_property("DEVICE_PROPERTIES")
    assert [found[device.name]["INFERENCE_NUM_THREADS"] for device in devices] == [1, 2]


def test_model_server_gets_as_many_streams_as_an_op_takes_inferences_at_once() -> None:
    written = served_config(Usage("m", "model.xml", "CPU", {}, num_requests=4), "m")
    jsonschema.validate(written, SERVED)
    config = written["model_config_list"][0]["config"]
    assert (config["nireq"], config["plugin_config"]) == (4, {"NUM_STREAMS": "4"})

"""Format cpp: a C++17 program that runs the placed model with OpenVINO's C++ API alone."""

from __future__ import annotations

from pathlib import Path
from typing import final

import openvino as ov

from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.ir.export._placed import deployed_map
from hsdag.ir.export.base import Exporter, write_ir
from hsdag.ir.placement import Placement, write_atomically

SUFFIXES = (".cpp", ".cc", ".cxx")


@final
class CppExporter(Exporter):
    """FILE.cpp; with the model at hand also FILE.xml and FILE.bin, the placed model that the program reads."""

    def write(self, placement: Placement, model: ov.Model | None, out_path: Path) -> list[Path]:
        """Write the program and, where the model is at hand, the IR beside it."""
        if out_path.suffix not in SUFFIXES:
            raise OptionError(f"--format cpp writes a C++ file: end the output's name in .cpp, not {out_path}")
        if placement.executor != "hetero" and len(placement.used_devices) > 1:
            raise OptionError(
                f"only placements for HETERO can be exported to C++, and this one is for the {placement.executor} "
                "executor; use --format python"
            )
        placed = None if model is None else placement.apply(model)
        default = f"{placement.model.name}.xml" if placed is None else out_path.with_suffix(".xml").name
        specs = [device.spec() for device in placement.devices if device.name in placement.used_devices]
        ids = {spec.openvino_name: d for d, spec in enumerate(specs)}
        affinity = deployed_map(placement, placed)
        text = _HEAD + "\n".join(
            (
                f"const char* const kDefaultModel = {literal(default)};",
                f"const std::vector<Device> kDevices = {{{', '.join(_device(spec) for spec in specs)}}};",
                "const Op kAffinity[] = {",
                *(f"    {{{literal(op)}, {ids[device]}}}," for op, device in affinity.items()),
                "};",
            )
        )
        beside = [] if placed is None else write_ir(placed, out_path.with_suffix(".xml"))
        write_atomically(out_path, (text + _BODY).encode())
        return [out_path, *beside]


def literal(text: str) -> str:
    """A C++ string literal with the UTF-8 bytes of ``text``; all but plain ASCII as three octal digits."""
    shown = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(shown) + '"'


def _device(spec: DeviceSpec) -> str:
    library = PLUGIN_LIBRARIES[spec.plugin.partition(".")[0]] if spec.is_added else ""
    properties = ", ".join(
        f"{{{literal(key)}, std::string({literal(value)})}}" for key, value in spec.properties.items()
    )
    return f"{{{literal(spec.openvino_name)}, {literal(library)}, {{{properties}}}}}"


_HEAD = """// Runs a model with every op on the device it was placed on: PROGRAM [MODEL.xml]
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include <openvino/openvino.hpp>

struct Device {
    std::string name;
    std::string library;  // of the plugin, where the device has to be added
    ov::AnyMap properties;
};

struct Op {
    const char* name;
    std::size_t device;
};

"""

_BODY = """

void register_devices(ov::Core& core) {
    for (const Device& device : kDevices) {
        const std::string loaded = device.name.substr(0, device.name.find('.'));
        const auto known = core.get_available_devices();
        const bool present = std::any_of(known.begin(), known.end(), [&](const std::string& name) {
            return name.substr(0, name.find('.')) == loaded;
        });
        if (!device.library.empty() && !present) core.register_plugin(device.library, loaded);
        if (!device.properties.empty()) core.set_property(loaded, device.properties);
    }
}

void place(const std::shared_ptr<ov::Model>& model) {
    std::unordered_map<std::string, std::size_t> left;
    for (const Op& op : kAffinity) left.emplace(op.name, op.device);
    for (const std::shared_ptr<ov::Node>& node : model->get_ordered_ops()) {
        const auto found = left.find(node->get_friendly_name());
        if (found == left.end())
            throw std::runtime_error("the affinity map does not have op '" + node->get_friendly_name() +
                                     "' of the model, or has it once and the model twice");
        node->get_rt_info()["affinity"] = kDevices[found->second].name;
        left.erase(found);
    }
    if (!left.empty())
        throw std::runtime_error("the model does not have op '" + left.begin()->first + "' of the affinity map");
}

ov::Tensor random_tensor(const ov::Output<const ov::Node>& port, std::mt19937& generator) {
    if (port.get_partial_shape().is_dynamic())
        throw std::runtime_error("an input has a dynamic shape: save the model with fixed shapes");
    ov::Tensor tensor(port.get_element_type(), port.get_shape());
    std::memset(tensor.data(), 0, tensor.get_byte_size());
    std::normal_distribution<float> normal;
    if (port.get_element_type() == ov::element::f32)
        std::generate_n(tensor.data<float>(), tensor.get_size(), [&] { return normal(generator); });
    else if (port.get_element_type() == ov::element::f16)
        std::generate_n(tensor.data<ov::float16>(), tensor.get_size(), [&] { return ov::float16(normal(generator)); });
    return tensor;
}

void run(const std::string& path) {
    ov::Core core;
    register_devices(core);
    const std::shared_ptr<ov::Model> model = core.read_model(path);
    place(model);
    std::string target = kDevices.size() > 1 ? "HETERO:" : "";
    for (std::size_t d = 0; d < kDevices.size(); ++d) target += (d > 0 ? "," : "") + kDevices[d].name;
    ov::AnyMap config;  // HETERO overrides what was set on the core, but not what is given here
    ov::AnyMap kept;
    for (const Device& device : kDevices)
        if (!device.properties.empty()) kept.emplace(device.name, device.properties);
    if (kDevices.size() > 1 && !kept.empty()) config.emplace("DEVICE_PROPERTIES", kept);
    ov::CompiledModel compiled = core.compile_model(model, target, config);
    const std::string submodels =
        kDevices.size() > 1 ? compiled.get_property("HETERO_NUMBER_OF_SUBMODELS").as<std::string>() : "1";
    std::cout << "submodels: " << submodels << std::endl;
    ov::InferRequest request = compiled.create_infer_request();
    std::mt19937 generator(0);
    for (const ov::Output<const ov::Node>& port : compiled.inputs())
        request.set_tensor(port, random_tensor(port, generator));
    request.infer();
    const auto start = std::chrono::steady_clock::now();
    request.infer();
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    std::cout << "latency_ms: " << elapsed.count() << std::endl;
}

int main(int argc, char** argv) {
    try {
        run(argc > 1 ? argv[1] : kDefaultModel);
    } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    return 0;
}
"""

EXPORTER = CppExporter()

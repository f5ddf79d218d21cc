// Runs a model with every op on the device it was placed on: PROGRAM [MODEL.xml]
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

// DATA

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

// Runs a model with every op on the device it was placed on: PROGRAM [MODEL.xml] [INPUT=FILE ...] [--output FOLDER]
//
// A file holds an input, as NumPy saves it (.npy) or, where the shape is fixed, as the bytes of its elements alone. Outputs
// go to FOLDER/NAME.npy. Without files, inputs are random, and the second run is timed.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <sstream>
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

using Port = ov::Output<const ov::Node>;

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

ov::CompiledModel compiled_model(ov::Core& core, const std::string& path) {
    register_devices(core);
    const std::shared_ptr<ov::Model> model = core.read_model(path);
    if (kAffinity.empty()) return core.compile_model(model, kDevices[0].name);  // all is on one device
    place(model);
    std::string target = "HETERO:";
    ov::AnyMap config, kept;  // HETERO overrides what was set on the core, but not what is given here
    for (const Device& device : kDevices) {
        target += (&device == &kDevices[0] ? "" : ",") + device.name;
        if (!device.properties.empty()) kept.emplace(device.name, device.properties);
    }
    if (!kept.empty()) config.emplace("DEVICE_PROPERTIES", kept);
    return core.compile_model(model, target, config);
}

std::string name_of(const Port& port) {
    return port.get_names().empty() ? port.get_node()->get_friendly_name() : port.get_any_name();
}

// As NumPy writes it: <f4, <i8, |b1.
std::string numpy_type(const ov::element::Type& type) {
    const char kind = type == ov::element::boolean ? 'b' : type.is_real() ? 'f' : type.is_signed() ? 'i' : 'u';
    return std::string(1, type.size() > 1 ? '<' : '|') + kind + std::to_string(type.size());
}

ov::Tensor read_tensor(const Port& port, const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("no such file: " + path);
    const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ov::Shape shape;
    std::size_t begin = 0;
    if (content.size() > 12 && content.compare(0, 6, "\x93NUMPY") == 0) {
        begin = content[6] == 1 ? 10 : 12;  // later versions have four bytes for the length of the header
        std::size_t length = 0;
        for (std::size_t k = begin; k-- > 8;) length = length << 8 | static_cast<unsigned char>(content[k]);
        const std::string header = content.substr(begin, length);
        const std::size_t sizes = header.find("'shape': (");
        if (header.find("'" + numpy_type(port.get_element_type()) + "'") == std::string::npos ||
            header.find("'fortran_order': False") == std::string::npos || sizes == std::string::npos)
            throw std::runtime_error(path + " does not hold elements of " + port.get_element_type().get_type_name() +
                                     " in C order: " + header);
        std::istringstream text(header.substr(sizes + 10));
        for (std::size_t size; text >> size; text.ignore()) shape.push_back(size);
        begin += length;
    } else if (port.get_partial_shape().is_static()) {
        shape = port.get_shape();
    } else {
        throw std::runtime_error("input '" + name_of(port) + "' has no fixed shape: give it as a .npy file");
    }
    ov::Tensor tensor(port.get_element_type(), shape);
    if (begin > content.size() || content.size() - begin != tensor.get_byte_size())
        throw std::runtime_error(path + " does not have the " + std::to_string(tensor.get_byte_size()) +
                                 " bytes of input '" + name_of(port) + "'");
    std::memcpy(tensor.data(), content.data() + begin, tensor.get_byte_size());
    return tensor;
}

void write_tensor(const ov::Tensor& tensor, const std::string& path) {
    std::string header = "{'descr': '" + numpy_type(tensor.get_element_type()) + "', 'fortran_order': False, 'shape': (";
    for (const std::size_t size : tensor.get_shape()) header += std::to_string(size) + ", ";
    header += "), }";
    header.resize((header.size() + 74) / 64 * 64 - 11, ' ');  // so that the data begin at a multiple of 64
    header += '\n';
    std::ofstream file(path, std::ios::binary);
    file.write("\x93NUMPY\x01\x00", 8);
    file.put(static_cast<char>(header.size() & 255)).put(static_cast<char>(header.size() >> 8));
    file << header;
    file.write(static_cast<const char*>(tensor.data()), static_cast<std::streamsize>(tensor.get_byte_size()));
    if (!file) throw std::runtime_error(path + " cannot be written");
}

ov::Tensor random_tensor(const Port& port, std::mt19937& generator) {
    ov::Shape shape;
    for (const ov::Dimension& size : port.get_partial_shape())
        shape.push_back(static_cast<std::size_t>(std::max<long long>(size.get_min_length(), size.is_dynamic())));
    ov::Tensor tensor(port.get_element_type(), shape);
    std::memset(tensor.data(), 0, tensor.get_byte_size());
    std::normal_distribution<float> normal;
    if (port.get_element_type() == ov::element::f32)
        std::generate_n(tensor.data<float>(), tensor.get_size(), [&] { return normal(generator); });
    else if (port.get_element_type() == ov::element::f16)
        std::generate_n(tensor.data<ov::float16>(), tensor.get_size(), [&] { return ov::float16(normal(generator)); });
    return tensor;
}

void set_inputs(ov::InferRequest& request, const ov::CompiledModel& compiled, std::map<std::string, std::string> files) {
    std::mt19937 generator(0);
    const bool is_random = files.empty();
    for (const Port& port : compiled.inputs()) {
        const auto found = files.find(name_of(port));
        if (!is_random && found == files.end())
            throw std::runtime_error("no file is given for input '" + name_of(port) + "'");
        request.set_tensor(port, is_random ? random_tensor(port, generator) : read_tensor(port, found->second));
        if (!is_random) files.erase(found);
    }
    if (!files.empty()) throw std::runtime_error("the model has no input '" + files.begin()->first + "'");
}

void run(const std::vector<std::string>& arguments) {
    std::string path = kDefaultModel, folder;
    std::map<std::string, std::string> files;
    for (std::size_t k = 0; k < arguments.size(); ++k) {
        const std::size_t equals = arguments[k].find('=');
        if (arguments[k] == "--output" && k + 1 < arguments.size()) folder = arguments[++k];
        else if (equals == std::string::npos) path = arguments[k];
        else files[arguments[k].substr(0, equals)] = arguments[k].substr(equals + 1);
    }
    ov::Core core;
    ov::CompiledModel compiled = compiled_model(core, path);
    if (!kAffinity.empty())
        std::cout << "submodels: " << compiled.get_property("HETERO_NUMBER_OF_SUBMODELS").as<std::string>() << std::endl;
    ov::InferRequest request = compiled.create_infer_request();
    set_inputs(request, compiled, files);
    if (files.empty()) request.infer();
    const auto start = std::chrono::steady_clock::now();
    request.infer();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::cout << "latency_s: " << elapsed.count() << std::endl;
    for (const Port& port : compiled.outputs()) {
        const ov::Tensor tensor = request.get_tensor(port);
        std::cout << name_of(port) << ": " << tensor.get_element_type() << " " << tensor.get_shape() << std::endl;
        std::string file = name_of(port);
        std::replace(file.begin(), file.end(), '/', '_');
        if (!folder.empty()) write_tensor(tensor, folder + "/" + file + ".npy");
    }
}

int main(int argc, char** argv) {
    try {
        run(std::vector<std::string>(argv + 1, argv + argc));
    } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    return 0;
}

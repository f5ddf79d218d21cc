// Runs the model of this folder on the devices that it was placed on: PROGRAM FOLDER [INPUT=FILE ...]
//
// A file has the bytes of an input's elements; INPUT is the input's name or, if it has none, its number. Inputs without
// a file are zeros, with the sizes that the model was placed for. Outputs are written to NAME.bin. The latency is the
// median of several inferences after a first one.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <openvino/openvino.hpp>

const char* const kModel = "model.xml";
const char* const kDevice = "CPU";
const ov::AnyMap kProperties = {};
const std::vector<ov::Shape> kSizes = {};  // of each input, where these are not fixed
const std::size_t kRuns = 10;

std::string name_of(const ov::Output<const ov::Node>& port, std::size_t k) {
    return port.get_names().empty() ? std::to_string(k) : port.get_any_name();
}

int main(int argc, char** argv) try {
    const std::string folder = argc > 1 ? argv[1] : ".";
    std::map<std::string, std::string> files;
    for (int k = 2; k < argc; ++k) {
        const std::string word = argv[k];
        files[word.substr(0, word.rfind('='))] = word.substr(word.rfind('=') + 1);
    }
    const std::string plugins = folder + "/plugins.xml";  // has the devices that OpenVINO does not have by itself
    ov::Core core(std::ifstream(plugins) ? plugins : "");
    core.add_extension(folder + "/libhsdag.so");
    ov::CompiledModel compiled = core.compile_model(folder + "/" + kModel, kDevice, kProperties);
    ov::InferRequest request = compiled.create_infer_request();
    for (std::size_t k = 0; k < compiled.inputs().size(); ++k) {
        const auto port = compiled.inputs()[k];
        ov::Tensor tensor(port.get_element_type(), kSizes.empty() ? port.get_partial_shape().get_min_shape() : kSizes[k]);
        const auto given = files.find(name_of(port, k));
        if (given == files.end()) {
            if (tensor.get_element_type() != ov::element::string) std::memset(tensor.data(), 0, tensor.get_byte_size());
        } else {
            std::ifstream file(given->second, std::ios::binary);
            const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
            if (bytes.size() != tensor.get_byte_size())
                throw std::runtime_error(given->second + " does not have the " + std::to_string(tensor.get_byte_size()) +
                                         " bytes of input '" + given->first + "'");
            std::memcpy(tensor.data(), bytes.data(), bytes.size());
            files.erase(given);
        }
        request.set_input_tensor(k, tensor);
    }
    if (!files.empty()) throw std::runtime_error("the model has no input '" + files.begin()->first + "'");
    std::vector<double> seconds;
    for (std::size_t k = 0; k <= kRuns; ++k) {
        for (ov::VariableState& state : request.query_state()) state.reset();
        const auto start = std::chrono::steady_clock::now();
        request.infer();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(seconds.begin() + 1, seconds.end());
    std::cout << "latency_s: " << (seconds[kRuns / 2] + seconds[kRuns / 2 + 1]) / 2 << " (median of " << kRuns << " runs)"
              << std::endl;
    for (std::size_t k = 0; k < compiled.outputs().size(); ++k) {
        const ov::Tensor tensor = request.get_output_tensor(k);
        std::string name = name_of(compiled.outputs()[k], k);
        std::cout << name << ": " << tensor.get_element_type() << " " << tensor.get_shape() << std::endl;
        std::replace(name.begin(), name.end(), '/', '_');
        if (tensor.get_element_type() == ov::element::string) continue;
        std::ofstream file(name + ".bin", std::ios::binary);
        file.write(static_cast<const char*>(tensor.data()), static_cast<std::streamsize>(tensor.get_byte_size()));
        if (!file) throw std::runtime_error(name + ".bin cannot be written");
    }
} catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
}

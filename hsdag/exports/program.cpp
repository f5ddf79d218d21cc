// Runs a model with every op on the device it was placed on: PROGRAM [MODEL] [INPUT=FILE ...] [--output FOLDER]
//
// A file holds an input, as NumPy saves it (.npy) or, where the shape is fixed, as the bytes of its elements alone. Outputs
// go to FOLDER/NAME.npy. Without files, inputs are random, and the second run is timed.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <openvino/openvino.hpp>

struct Device {
    std::string name;
    std::string library;  // of the plugin, where the device has to be added
    ov::AnyMap properties;
};

using Port = ov::Output<const ov::Node>;
using Ports = std::vector<std::pair<std::string, Port>>;
using Tensors = std::vector<std::pair<std::string, ov::Tensor>>;

void register_devices(ov::Core& core, const std::vector<Device>& devices) {
    for (const Device& device : devices) {
        const std::string loaded = device.name.substr(0, device.name.find('.'));
        const auto known = core.get_available_devices();
        const bool present = std::any_of(known.begin(), known.end(), [&](const std::string& name) {
            return name.substr(0, name.find('.')) == loaded;
        });
        if (!device.library.empty() && !present) core.register_plugin(device.library, loaded);
        if (!device.properties.empty()) core.set_property(loaded, device.properties);
    }
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

// HETERO
struct Op {
    const char* name;
    std::size_t device;
};

// DATA

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
    register_devices(core, kDevices);
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

class Placed {
   public:
    Placed(ov::Core& core, const std::string& path) : compiled_(compiled_model(core, path)) {
        if (!kAffinity.empty())
            std::cout << "submodels: " << compiled_.get_property("HETERO_NUMBER_OF_SUBMODELS").as<std::string>()
                      << std::endl;
        request_ = compiled_.create_infer_request();
        for (const Port& port : compiled_.inputs()) inputs.emplace_back(name_of(port), port);
    }

    void set_input(std::size_t k, const ov::Tensor& tensor) { request_.set_input_tensor(k, tensor); }

    std::size_t infer() {
        request_.infer();
        return 1;
    }

    Tensors outputs() {
        Tensors found;
        for (const Port& port : compiled_.outputs()) found.emplace_back(name_of(port), request_.get_tensor(port));
        return found;
    }

    Ports inputs;

   private:
    ov::CompiledModel compiled_;
    ov::InferRequest request_;
};

// PARTS
struct Read {
    const char* name;
    int part;  // that gives it; -1 for an input of the model
    const char* given;
};

struct Part {
    const char* file;
    std::size_t device;
    std::vector<Read> reads;
};

// DATA

// Every device computes the first of its parts whose inputs are there, whatever the others do.
class Placed {
   public:
    Placed(ov::Core& core, const std::string& folder) {
        register_devices(core, kDevices);
        std::set<std::string> known;
        for (std::size_t k = 0; k < kParts.size(); ++k) {
            const Part& part = kParts[k];
            ov::CompiledModel compiled = core.compile_model(folder + "/" + part.file, kDevices[part.device].name);
            requests_.push_back(compiled.create_infer_request());
            requests_[k].set_callback([this, k](std::exception_ptr error) { ended(k, error); });
            readers_.emplace_back();
            for (const Read& read : part.reads)
                if (read.part >= 0) readers_[static_cast<std::size_t>(read.part)].push_back(k);
                else if (known.insert(read.given).second) inputs.emplace_back(read.given, compiled.input(read.name));
        }
    }

    void set_input(std::size_t k, const ov::Tensor& tensor) { given_[inputs[k].first] = tensor; }

    std::size_t infer() {
        std::unique_lock<std::mutex> lock(mutex_);
        waits_.assign(kParts.size(), 0);
        ready_.assign(kDevices.size(), {});
        num_busy_ = 0;
        busy_.assign(kDevices.size(), false);
        for (std::size_t k = 0; k < kParts.size(); ++k) {
            for (const Read& read : kParts[k].reads) waits_[k] += read.part >= 0;
            if (waits_[k] == 0) ready_[kParts[k].device].insert(k);
        }
        start();
        done_.wait(lock, [this] { return num_busy_ == 0; });
        lock.unlock();
        for (ov::InferRequest& request : requests_) request.wait();
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
        return 1;
    }

    Tensors outputs() {
        Tensors found;
        for (const Read& read : kOutputs) found.emplace_back(read.name, tensor(read));
        return found;
    }

    Ports inputs;

   private:
    ov::Tensor tensor(const Read& read) {
        return read.part < 0 ? given_.at(read.given) : requests_[static_cast<std::size_t>(read.part)].get_tensor(read.given);
    }

    void start() {
        for (std::size_t device = 0; device < kDevices.size() && !error_; ++device) {
            if (busy_[device] || ready_[device].empty()) continue;
            const std::size_t k = *ready_[device].begin();
            ready_[device].erase(k);
            try {
                for (const Read& read : kParts[k].reads) requests_[k].set_tensor(read.name, tensor(read));
                requests_[k].start_async();
                busy_[device] = true;
                ++num_busy_;
            } catch (...) {
                error_ = std::current_exception();  // which is thrown when no device is busy any more
            }
        }
    }

    void ended(std::size_t part, std::exception_ptr error) {
        const std::lock_guard<std::mutex> lock(mutex_);
        busy_[kParts[part].device] = false;
        --num_busy_;
        if (error) error_ = error;
        for (const std::size_t k : readers_[part])
            if (--waits_[k] == 0) ready_[kParts[k].device].insert(k);
        start();
        if (num_busy_ == 0) done_.notify_all();
    }

    std::vector<ov::InferRequest> requests_;
    std::map<std::string, ov::Tensor> given_;
    std::mutex mutex_;
    std::condition_variable done_;
    std::vector<std::vector<std::size_t>> readers_;  // by part, once for each tensor that is read
    std::vector<std::size_t> waits_;                 // by part, for so many inputs
    std::vector<std::set<std::size_t>> ready_;       // by device
    std::vector<bool> busy_;
    std::size_t num_busy_ = 0;
    std::exception_ptr error_;
};

// COPIES
struct Copy {
    std::size_t device;
    std::size_t requests;
};

// DATA

// Inferences on all requests of all copies; the last ones are left to copies that end them first.
class Placed {
   public:
    Placed(ov::Core& core, const std::string& path) {
        register_devices(core, kDevices);
        const std::shared_ptr<ov::Model> model = core.read_model(path);
        for (std::size_t c = 0; c < kCopies.size(); ++c) {
            const std::string& device = kDevices[kCopies[c].device].name;
            compiled_ = core.compile_model(model, device, {{"PERFORMANCE_HINT", "THROUGHPUT"}});
            for (std::size_t k = 0; k < kCopies[c].requests; ++k) requests_.emplace_back(c, compiled_.create_infer_request());
        }
        for (const Port& port : compiled_.inputs()) inputs.emplace_back(name_of(port), port);
        period_s_.assign(kCopies.size(), 0.0);
    }

    void set_input(std::size_t k, const ov::Tensor& tensor) {
        for (auto& each : requests_) each.second.set_input_tensor(k, tensor);
    }

    std::size_t infer() {
        const std::size_t count = left_ = 8 * requests_.size();
        std::vector<std::future<void>> running;
        for (auto& each : requests_)
            running.push_back(std::async(std::launch::async, [this, &each] { work(each.first, each.second); }));
        for (std::future<void>& each : running) each.get();
        return count;
    }

    Tensors outputs() {
        Tensors found;
        for (const Port& port : compiled_.outputs()) found.emplace_back(name_of(port), last_.get_output_tensor(port.get_index()));
        return found;
    }

    Ports inputs;

   private:
    void work(std::size_t copy, ov::InferRequest& request) {
        while (is_to_take(copy)) {
            const auto start = std::chrono::steady_clock::now();
            request.infer();
            const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
            const std::lock_guard<std::mutex> lock(mutex_);
            period_s_[copy] = elapsed.count();
            last_ = request;
        }
    }

    bool is_to_take(std::size_t copy) {
        const std::lock_guard<std::mutex> lock(mutex_);
        double others = 0;  // what faster copies do meanwhile
        for (std::size_t c = 0; c < kCopies.size(); ++c)
            if (period_s_[c] > 0 && period_s_[c] < period_s_[copy])
                others += static_cast<double>(kCopies[c].requests) * (period_s_[copy] / period_s_[c] - 1);
        const bool takes = left_ > 0 && static_cast<double>(left_) > others;
        left_ -= takes;
        return takes;
    }

    std::vector<std::pair<std::size_t, ov::InferRequest>> requests_;  // and the copy of each
    std::vector<double> period_s_;
    std::size_t left_ = 0;
    std::mutex mutex_;
    ov::CompiledModel compiled_;
    ov::InferRequest last_;
};

// END
void set_inputs(Placed& placed, std::map<std::string, std::string> files) {
    std::mt19937 generator(0);
    const bool is_random = files.empty();
    for (std::size_t k = 0; k < placed.inputs.size(); ++k) {
        const auto& [name, port] = placed.inputs[k];
        const auto found = files.find(name);
        if (!is_random && found == files.end()) throw std::runtime_error("no file is given for input '" + name + "'");
        placed.set_input(k, is_random ? random_tensor(port, generator) : read_tensor(port, found->second));
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
    Placed placed(core, path);
    set_inputs(placed, files);
    if (files.empty()) placed.infer();
    const auto start = std::chrono::steady_clock::now();
    const std::size_t count = placed.infer();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (count == 1) std::cout << "latency_s: " << elapsed.count() << std::endl;
    else std::cout << "inferences_per_s: " << static_cast<double>(count) / elapsed.count() << std::endl;
    for (const auto& [name, tensor] : placed.outputs()) {
        std::cout << name << ": " << tensor.get_element_type() << " " << tensor.get_shape() << std::endl;
        std::string file = name;
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

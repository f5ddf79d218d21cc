// Runs the parts of a placed model, each on its device, and copies of a model side by side.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <openvino/op/convert.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/runtime/core.hpp>

namespace hsdag {

// Output `port` of a part, or input `port` of the model if `part` is kInput.
struct Source {
    std::ptrdiff_t part;
    std::size_t port;
};
constexpr std::ptrdiff_t kInput = -1;

struct Device {
    std::string name, plugin;
    ov::AnyMap properties;
};

// A convex piece of the model, in a file, and what its inputs read.
struct Part {
    std::filesystem::path file;
    std::size_t device;
    std::vector<Source> reads;
};

// The whole model as parts in an order in which they can run; on one device it is a single part.
struct Copy {
    std::size_t requests;  // that there are at most, 0 for as many as inferences are asked for at a time
    std::vector<Part> parts;
    std::vector<Source> outputs;
};

struct Port {
    ov::element::Type type;
    ov::PartialShape shape;
};

// Reader of a file of words; words in quotes may contain any character.
class Words {
   public:
    explicit Words(const std::filesystem::path& path) : path_(path.string()), file_(path, std::ios::binary) {
        if (!file_) OPENVINO_THROW("hsdag: there is no ", path_, ": keep the folder of the export together");
    }

    template <class T>
    T next() {
        T value{};
        if constexpr (std::is_same_v<T, std::string>) file_ >> std::quoted(value);
        else file_ >> value;
        if (!file_) OPENVINO_THROW("hsdag: ", path_, " is damaged, or of another hsdag: export again");
        return value;
    }

    // Reads a count, then as many items with `read`.
    template <class Read>
    auto many(Read read) {
        std::vector<decltype(read())> found;
        for (std::size_t left = next<std::size_t>(); left > 0; --left) found.push_back(read());
        return found;
    }

   private:
    const std::string path_;
    std::ifstream file_;
};

// The contents of a plan file.
struct Plan {
    std::vector<Port> inputs, outputs;
    std::vector<Device> devices;
    std::vector<Copy> copies;

    explicit Plan(const std::filesystem::path& folder) {
        Words words(folder / "plan.txt");
        const auto text = [&] { return words.next<std::string>(); };
        const auto number = [&] { return words.next<std::size_t>(); };
        const auto port = [&] {
            const ov::element::Type type(text());
            return Port{type, ov::PartialShape(text())};
        };
        const auto source = [&] {
            const auto part = words.next<std::ptrdiff_t>();
            return Source{part, number()};
        };
        if (text() != "hsdag-plan" || number() != 1)
            OPENVINO_THROW("hsdag: ", folder.string(), " was written by another hsdag than this library: export again");
        inputs = words.many(port);
        outputs = words.many(port);
        devices = words.many([&] {
            Device device{text(), text(), {}};
            for (std::size_t left = number(); left > 0; --left) {
                const std::string key = text();
                device.properties.emplace(key, text());
            }
            return device;
        });
        copies = words.many([&] {
            Copy copy{number(), {}, {}};
            copy.parts = words.many([&] {
                Part part{folder / text(), number(), {}};
                part.reads = words.many(source);
                return part;
            });
            copy.outputs = words.many(source);
            return copy;
        });
    }
};

// Returns the last line of a message; the lines before it are places in OpenVINO's code.
inline std::string reason(const std::exception_ptr& error) {
    std::string line, last = "unknown";
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& raised) {
        for (std::istringstream lines(raised.what()); std::getline(lines, line);)
            if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
    } catch (...) {
    }
    return last;
}

// Returns a tensor, or its elements converted, since plugins compute with some types in place of others.
inline ov::Tensor converted(const ov::Tensor& tensor, const ov::element::Type& type) {
    if (tensor.get_element_type() == type) return tensor;
    const auto given = std::make_shared<ov::op::v0::Parameter>(tensor.get_element_type(), tensor.get_shape());
    ov::TensorVector found{ov::Tensor(type, tensor.get_shape())};
    if (!ov::op::v0::Convert(given, type).evaluate(found, {tensor}))
        OPENVINO_THROW("hsdag: a tensor of ", tensor.get_element_type(), " cannot be read as ", type);
    return found[0];
}

// A copy of the model with its compiled parts. Several inferences may be under way; earlier ones go first on every
// device. A device runs one part at a time of a model that is cut, or else as many inferences as there are requests.
class Engine {
   public:
    Engine(ov::Core& core, const Plan& plan, const Copy& copy)
        : devices_(plan.devices),
          copy_(copy),
          readers_(copy.parts.size()),
          num_reads_(copy.parts.size()),
          ready_(plan.devices.size()),
          num_busy_(plan.devices.size()),
          capacity_(copy.parts.size() > 1 || copy.requests == 0 ? 1 : copy.requests) {
        for (std::size_t k = 0; k < copy.parts.size(); ++k) {
            const Part& part = copy.parts[k];
            const Device& device = devices_[part.device];
            try {
                compiled_.push_back(core.compile_model(part.file, device.plugin, device.properties));
            } catch (...) {
                OPENVINO_THROW("hsdag: ", device.name, " (", device.plugin, ") does not compile ", part.file.string(),
                               ": ", reason(std::current_exception()));
            }
            for (const Source& read : part.reads) {
                if (read.part == kInput) continue;
                readers_[static_cast<std::size_t>(read.part)].push_back(k);
                ++num_reads_[k];
            }
        }
    }

    // Throws ov::Exception, which names the failed part and its device, after all parts of the inference have ended.
    void infer(ov::TensorVector& outputs, const ov::TensorVector& inputs) {
        auto run = free_run();
        run->inputs = &inputs;
        give(*run, [](const Source& read, const ov::PartialShape&) { return read.part == kInput; });
        wait(*run);
        for (std::size_t k = 0; k < outputs.size() && run->error.empty(); ++k) {
            const ov::Tensor found = converted(tensor(*run, copy_.outputs[k]), outputs[k].get_element_type());
            outputs[k].set_shape(found.get_shape());
            if (found.get_size() > 0) found.copy_to(outputs[k]);
        }
        const std::string error = std::exchange(run->error, "");
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            free_.push_back(std::move(run));
        }
        if (!error.empty()) OPENVINO_THROW("hsdag: ", error);
    }

    std::size_t num_requests() const { return copy_.requests; }

   private:
    // Infer requests of all parts, for one inference at a time.
    struct Run {
        std::vector<ov::InferRequest> requests;
        const ov::TensorVector* inputs = nullptr;
        std::size_t number = 0;
        std::vector<std::size_t> waits;  // by part: tensors of other parts that are not there yet
        std::size_t num_left = 0;        // parts that have not ended
        std::size_t num_busy = 0;        // parts that run
        std::string error;
        std::condition_variable ended;
    };
    using Task = std::tuple<std::size_t, std::size_t, Run*>;  // number of the inference, part

    std::unique_ptr<Run> free_run() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!free_.empty()) {
                auto run = std::move(free_.back());
                free_.pop_back();
                return run;
            }
        }
        auto run = std::make_unique<Run>();
        for (std::size_t k = 0; k < compiled_.size(); ++k) {
            run->requests.push_back(compiled_[k].create_infer_request());
            run->requests[k].set_callback(
                [this, own = run.get(), k](const std::exception_ptr& error) { ended(*own, k, error); });
        }
        give(*run, [](const Source& read, const ov::PartialShape& shape) {
            return read.part != kInput && shape.is_static();
        });
        return run;
    }

    ov::Tensor tensor(Run& run, const Source& source) const {
        if (source.part == kInput) return (*run.inputs)[source.port];
        return run.requests[static_cast<std::size_t>(source.part)].get_output_tensor(source.port);
    }

    // A tensor over all of another. The CPU plugin's outputs of open sizes write their shape anew whenever they are
    // asked for it, so that two readers on threads of their own would see each other's half-written shapes (2026.4.1).
    static ov::Tensor with_own_shape(const ov::Tensor& tensor) {
        if (tensor.is<ov::RemoteTensor>()) return tensor;
        const ov::Shape shape = tensor.get_shape();
        return ov::Tensor(tensor, ov::Coordinate(shape.size(), 0), ov::Coordinate(shape));
    }

    // Sets the tensors of those inputs of a part for which `is_meant` holds.
    template <class IsMeant>
    void give(Run& run, std::size_t k, IsMeant is_meant) {
        for (std::size_t i = 0; i < copy_.parts[k].reads.size(); ++i) {
            const Source& read = copy_.parts[k].reads[i];
            const ov::PartialShape shape = compiled_[k].inputs()[i].get_partial_shape();
            if (!is_meant(read, shape)) continue;
            const ov::Tensor found = tensor(run, read);
            const bool has_open_size = read.part != kInput && shape.is_dynamic();
            run.requests[k].set_input_tensor(i, has_open_size ? with_own_shape(found) : found);
        }
    }

    template <class IsMeant>
    void give(Run& run, IsMeant is_meant) {
        for (std::size_t k = 0; k < compiled_.size(); ++k) give(run, k, is_meant);
    }

    // Starts a run and waits until all of its parts have ended.
    void wait(Run& run) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            run.number = count_++;
            run.waits = num_reads_;
            run.num_left = copy_.parts.size();
            for (std::size_t k = 0; k < copy_.parts.size(); ++k)
                if (run.waits[k] == 0) ready_[copy_.parts[k].device].emplace(run.number, k, &run);
            start();
            run.ended.wait(lock, [&run] { return run.num_busy == 0 && (run.num_left == 0 || !run.error.empty()); });
        }
        for (ov::InferRequest& request : run.requests) try {
                request.wait();  // until its callback has returned, too
            } catch (const std::exception&) {  // which the callback was given
            }
    }

    // Lets every free device begin the first of its tasks. The caller holds the lock, as in the functions below.
    void start() {
        for (std::size_t d = 0; d < ready_.size(); ++d)
            while (num_busy_[d] < capacity_ && !ready_[d].empty()) {
                const auto [number, k, run] = *ready_[d].begin();
                ready_[d].erase(ready_[d].begin());
                try {
                    give(*run, k, [](const Source& read, const ov::PartialShape& shape) {
                        return read.part != kInput && shape.is_dynamic();
                    });
                    run->requests[k].start_async();
                    ++num_busy_[d];
                    ++run->num_busy;
                } catch (...) {
                    fail(*run, k, std::current_exception());
                }
            }
    }

    void fail(Run& run, std::size_t part, const std::exception_ptr& error) {
        if (run.error.empty())
            run.error = copy_.parts[part].file.filename().string() + " failed on " +
                        devices_[copy_.parts[part].device].name + ": " + reason(error);
        for (std::set<Task>& ready : ready_)
            for (auto task = ready.begin(); task != ready.end();)
                task = std::get<2>(*task) == &run ? ready.erase(task) : std::next(task);
        run.ended.notify_all();
    }

    void ended(Run& run, std::size_t part, const std::exception_ptr& error) {
        const std::lock_guard<std::mutex> lock(mutex_);
        --num_busy_[copy_.parts[part].device];
        --run.num_busy;
        --run.num_left;
        if (error) fail(run, part, error);
        if (run.error.empty())
            for (const std::size_t k : readers_[part])
                if (--run.waits[k] == 0) ready_[copy_.parts[k].device].emplace(run.number, k, &run);
        start();
        if (run.num_busy == 0) run.ended.notify_all();
    }

    const std::vector<Device>& devices_;
    const Copy& copy_;
    std::vector<ov::CompiledModel> compiled_;
    std::vector<std::vector<std::size_t>> readers_;  // by part, once for each tensor that is read
    std::vector<std::size_t> num_reads_;             // by part: tensors of other parts
    std::mutex mutex_;
    std::vector<std::unique_ptr<Run>> free_;
    std::vector<std::set<Task>> ready_;  // by device
    std::vector<std::size_t> num_busy_;  // by device
    std::size_t capacity_;               // of a device: parts that it runs at a time
    std::size_t count_ = 0;              // of inferences
};

// The processors that the process could use when the library was loaded.
inline const cpu_set_t kProcessors = [] {
    cpu_set_t found;
    CPU_ZERO(&found);
    sched_getaffinity(0, sizeof(found), &found);
    return found;
}();

constexpr double kLatestShare = 0.2;  // weight of the latest inference in the mean that says how long a copy takes

// All copies of a plan. An inference runs on the copy that is expected to end it first.
class Placement {
   public:
    explicit Placement(const std::filesystem::path& folder) : plan(folder) {}

    // Compiles the copies that are not compiled yet.
    void compile() {
        std::call_once(once_, [this] {
            std::exception_ptr error;
            // In a separate thread: threads of the CPU plugin inherit their creator's processors, perhaps just one.
            std::thread([&] {
                sched_setaffinity(0, sizeof(kProcessors), &kProcessors);
                try {
                    static ov::Core* const core = new ov::Core;  // never taken down: plugins may be gone before
                    loads_.resize(plan.copies.size());
                    for (std::size_t c = 0; c < loads_.size(); ++c)
                        loads_[c].engine = std::make_unique<Engine>(*core, plan, plan.copies[c]);
                } catch (...) {
                    error = std::current_exception();
                }
            }).join();
            if (error) std::rethrow_exception(error);
        });
    }

    void infer(ov::TensorVector& outputs, const ov::TensorVector& inputs) {
        compile();
        Waiting own;
        std::size_t num_busy;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            waiting_.push_back(&own);
            dispatch();
            own.told.wait(lock, [&own] { return own.given != nullptr; });
            num_busy = own.given->num_busy;
        }
        Load& load = *own.given;
        const auto begin = std::chrono::steady_clock::now();
        std::exception_ptr error;
        try {
            load.engine->infer(outputs, inputs);
        } catch (...) {
            error = std::current_exception();
        }
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            const double latest_s = elapsed.count() / static_cast<double>(num_busy);
            if (!error) load.period_s += (load.period_s == 0 ? 1 : kLatestShare) * (latest_s - load.period_s);
            --load.num_busy;
            dispatch();
        }
        if (error) std::rethrow_exception(error);
    }

    const Plan plan;

   private:
    struct Load {
        std::unique_ptr<Engine> engine;
        std::size_t num_busy = 0;
        double period_s = 0;  // seconds per inference, 0 until one has ended

        bool is_free() const { return engine->num_requests() == 0 || num_busy < engine->num_requests(); }
        double next_end_s() const { return static_cast<double>(num_busy + 1) * period_s; }
        double num_ended_before(double seconds) const {
            return period_s == 0 ? 0 : std::max(std::ceil(seconds / period_s) - 1 - static_cast<double>(num_busy), 0.0);
        }
    };
    struct Waiting {
        Load* given = nullptr;
        std::condition_variable told;
    };

    // Returns whether more inferences wait than the other copies would end before this copy ends one.
    bool helps(const Load& load) const {
        double others = 0;
        for (const Load& other : loads_)
            if (&other != &load) others += other.num_ended_before(load.next_end_s());
        return static_cast<double>(waiting_.size()) > others;
    }

    // Gives the longest waiting inferences to copies as long as a free one helps. The caller holds the lock.
    void dispatch() {
        while (!waiting_.empty()) {
            Load* best = nullptr;
            for (Load& load : loads_)
                if (load.is_free() && helps(load) && (best == nullptr || load.next_end_s() < best->next_end_s()))
                    best = &load;
            if (best == nullptr) return;
            ++best->num_busy;
            waiting_.front()->given = best;
            waiting_.front()->told.notify_one();
            waiting_.pop_front();
        }
    }

    std::once_flag once_;
    std::mutex mutex_;
    std::vector<Load> loads_;
    std::deque<Waiting*> waiting_;
};

}  // namespace hsdag

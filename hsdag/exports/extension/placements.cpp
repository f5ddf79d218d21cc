// The extensions: readers that give the ops of a model the affinities stored in its file, and an op that holds a whole
// placement.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/assign.hpp>
#include <openvino/op/op.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/result.hpp>

#include "engine.hpp"

namespace {

// OpenVINO's reader keeps <user_data name="affinity" .../> of a layer under the first key; HETERO reads the second.
const char* const kStored = "user_dataaffinity";
const char* const kRead = "affinity";

// Gives an op, and all ops that it depends on, the affinities stored for them.
void restore(const std::shared_ptr<ov::Node>& last) {
    std::vector<ov::Node*> left{last.get()};
    while (!left.empty()) {
        ov::Node* const node = left.back();
        left.pop_back();
        auto& info = node->get_rt_info();
        const auto stored = info.find(kStored);
        if (stored == info.end() || !info.emplace(kRead, stored->second).second) continue;
        for (const ov::Output<ov::Node>& value : node->input_values()) left.push_back(value.get_node());
    }
}

// Inputs of the models that this thread reads, including those that no op reads.
thread_local std::vector<std::weak_ptr<ov::Node>> parameters;

// An op of OpenVINO. The reader creates an op after its inputs, and attaches what is stored for it afterwards. Results
// and Assigns, which no op reads, get the affinity of what they read.
template <class Op>
class Own : public ov::BaseOpExtension {
   public:
    explicit Own(const char* opset) : info_(Op::get_type_info_static().name, opset) {}

    const ov::DiscreteTypeInfo& get_type_info() const override { return info_; }

    ov::OutputVector create(const ov::OutputVector& inputs, ov::AttributeVisitor& visitor) const override {
        const auto op = std::make_shared<Op>();
        op->set_arguments(inputs);
        if (op->visit_attributes(visitor)) op->constructor_validate_and_infer_types();
        if (inputs.empty()) {
            const auto is_gone = [](const std::weak_ptr<ov::Node>& each) { return each.expired(); };
            parameters.erase(std::remove_if(parameters.begin(), parameters.end(), is_gone), parameters.end());
            parameters.push_back(op);
            return op->outputs();
        }
        restore(inputs[0].get_node_shared_ptr());
        for (const std::weak_ptr<ov::Node>& each : parameters)
            if (const auto parameter = each.lock()) restore(parameter);
        const auto& read = inputs[0].get_node()->get_rt_info();
        const auto affinity = read.find(kRead);
        if (affinity != read.end()) op->get_rt_info()[kRead] = affinity->second;
        return op->outputs();
    }

    std::vector<ov::Extension::Ptr> get_attached_extensions() const override { return {}; }

   private:
    const ov::DiscreteTypeInfo info_;
};

// Returns the folder of this library.
std::filesystem::path own_folder() {
    Dl_info info;
    if (dladdr(kStored, &info) == 0) return std::filesystem::current_path();
    return std::filesystem::absolute(info.dli_fname).parent_path();
}

const std::filesystem::path kFolder = own_folder();

// A whole placement. Its parts are in the folder `parts` next to this library, or else where they were exported to.
class Placed : public ov::op::Op {
   public:
    OPENVINO_OP("HsdagPlaced", "extension");

    Placed() = default;

    void validate_and_infer_types() override {
        if (!placement_) {
            const std::filesystem::path beside = kFolder / parts_, there = std::filesystem::path(exported_to_) / parts_;
            placement_ = std::make_shared<hsdag::Placement>(std::filesystem::exists(beside) ? beside : there);
        }
        const hsdag::Plan& plan = placement_->plan;
        if (get_input_size() != plan.inputs.size())
            OPENVINO_THROW("hsdag: the placed model has ", plan.inputs.size(), " inputs, not ", get_input_size());
        for (std::size_t k = 0; k < plan.inputs.size(); ++k) {
            const hsdag::Port& port = plan.inputs[k];
            if (!get_input_partial_shape(k).compatible(port.shape))
                OPENVINO_THROW("hsdag: input ", k, " of the placed model is ", port.shape, ", not ",
                               get_input_partial_shape(k), ": place the model with this shape");
        }
        for (std::size_t k = 0; k < plan.outputs.size(); ++k)
            set_output_type(k, plan.outputs[k].type, plan.outputs[k].shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        const auto clone = std::make_shared<Placed>();
        clone->parts_ = parts_;
        clone->exported_to_ = exported_to_;
        clone->placement_ = placement_;
        clone->set_arguments(inputs);
        clone->constructor_validate_and_infer_types();
        return clone;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("parts", parts_);
        visitor.on_attribute("exported_to", exported_to_);
        return true;
    }

    // Plugins call this when they compile the model, which is when the parts are compiled.
    bool has_evaluate() const override {
        placement_->compile();
        return true;
    }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        ov::TensorVector given;
        for (std::size_t k = 0; k < inputs.size(); ++k)  // of types that plugins compute with in place of others
            given.push_back(hsdag::converted(inputs[k], placement_->plan.inputs[k].type));
        placement_->infer(outputs, given);
        return true;
    }

    bool can_constant_fold(const ov::OutputVector&) const override { return false; }

   private:
    std::string parts_, exported_to_;
    std::shared_ptr<hsdag::Placement> placement_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void hsdag_extensions(std::vector<ov::Extension::Ptr>& extensions) {
    extensions.push_back(std::make_shared<Own<ov::op::v0::Parameter>>("opset1"));
    extensions.push_back(std::make_shared<Own<ov::op::v0::Result>>("opset1"));
    extensions.push_back(std::make_shared<Own<ov::op::v3::Assign>>("opset3"));
    extensions.push_back(std::make_shared<Own<ov::op::v6::Assign>>("opset6"));
    extensions.push_back(std::make_shared<ov::OpExtension<Placed>>());
}

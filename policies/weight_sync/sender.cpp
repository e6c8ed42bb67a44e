#include "policies/weight_sync/sender.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/base/xxh64.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::weight_sync::detail {

namespace {

// Tensors from here on go in messages of their own, straight out of their memory and into the receiver's; to
// copy smaller ones together costs less than a message each.
constexpr std::int64_t kOwnMessageBytes = 1 << 20;

class Sender {
 public:
  Sender(Wire& wire, const SenderConfig& config, const FolderPlan* plan)
      : wire_(wire), bucket_bytes_(config.bucket_bytes), plan_(plan) {
    check_user(bucket_bytes_ > 0, "weight sync: bucket_bytes is ", bucket_bytes_, "; give at least 1.");
    if (!plan_) return;
    Writer text;
    text.text(plan_->config_json);
    for (const checkpoint::TensorSpec& spec : plan_->specs) {
      checkpoint::safetensors_dtype_name(spec.dtype);
      checkpoint::tensor_bytes(spec);
      check_user(planned_.emplace(spec.name, &spec).second, "weight sync: the plan names tensor \"",
                 spec.name, "\" twice; name each once.");
      text.spec(spec);
    }
    send_message(wire_, Kind::plan, text.bytes(), {});
  }

  void add(std::string_view name, const Tensor& tensor) {
    const std::string text(name);
    check_user(tensor.defined() && tensor.layout() == at::kStrided, "weight sync: tensor \"", name,
               "\" is undefined or sparse; give a dense one.");
    const checkpoint::TensorSpec spec{text, tensor.scalar_type(), tensor.sizes().vec()};
    checkpoint::safetensors_dtype_name(spec.dtype);
    check_user(seen_.insert(text).second, "weight sync: tensor \"", name,
               "\" comes twice; send each name once.");
    if (plan_) check_planned(spec);

    const NoGradGuard no_grad;
    const Tensor values = tensor.to(at::Device(at::kCPU)).contiguous();
    const auto* memory = static_cast<const std::byte*>(values.const_data_ptr());
    const auto bytes = static_cast<std::int64_t>(values.nbytes());
    Writer described;
    described.spec(spec);
    hash_.update(described.bytes().data(), described.bytes().size());
    ++report_.tensors;
    report_.bytes += bytes;
    if (bytes >= std::min(kOwnMessageBytes, bucket_bytes_)) {
      flush();
      for (std::int64_t begin = 0; begin < bytes; begin += bucket_bytes_) {
        const std::int64_t length = std::min(bucket_bytes_, bytes - begin);
        describe(spec, begin, length);
        send_message(wire_, Kind::bucket, pieces_.bytes(), bytes_at(memory + begin, length));
        pieces_.clear();
        // After sending, so that the receivers hash at the same time.
        hash_.update(memory + begin, static_cast<std::size_t>(length));
      }
      return;
    }
    if (filled_ + bytes > bucket_bytes_) flush();
    if (!bucket_.defined()) bucket_ = empty({bucket_bytes_}, at::kByte);
    describe(spec, 0, bytes);
    if (bytes > 0)
      std::memcpy(static_cast<std::byte*>(bucket_.mutable_data_ptr()) + filled_, memory,
                  static_cast<std::size_t>(bytes));
    hash_.update(memory, static_cast<std::size_t>(bytes));
    filled_ += bytes;
  }

  SyncReport finish() {
    if (seen_.size() < planned_.size()) {
      std::vector<std::string_view> missing;
      for (const checkpoint::TensorSpec& spec : plan_->specs)
        if (seen_.count(spec.name) == 0) missing.push_back(spec.name);
      throw UserError(concat("weight sync: the weights lack ", some_of(missing), ", which the plan names."));
    }
    flush();
    report_.hash = hash_.digest();
    Writer text;
    text.number(report_.tensors);
    text.number(report_.bytes);
    text.number(static_cast<std::int64_t>(report_.hash));
    send_message(wire_, Kind::end, text.bytes(), {});
    return report_;
  }

 private:
  void check_planned(const checkpoint::TensorSpec& spec) const {
    const auto found = planned_.find(spec.name);
    check_user(found != planned_.end(), "weight sync: the plan has no tensor \"", spec.name,
               "\", which the weights give.");
    const checkpoint::TensorSpec& planned = *found->second;
    check_user(planned.dtype == spec.dtype && planned.shape == spec.shape, "weight sync: tensor \"",
               spec.name, "\" is ", checkpoint::safetensors_dtype_name(spec.dtype), " [", join(spec.shape),
               "], but the plan says ", checkpoint::safetensors_dtype_name(planned.dtype), " [",
               join(planned.shape), "].");
  }

  void describe(const checkpoint::TensorSpec& spec, std::int64_t begin, std::int64_t bytes) {
    pieces_.spec(spec);
    pieces_.number(begin);
    pieces_.number(bytes);
  }

  void flush() {
    if (pieces_.bytes().empty()) return;
    send_message(wire_, Kind::bucket, pieces_.bytes(), bytes_at(bucket_.const_data_ptr(), filled_));
    pieces_.clear();
    filled_ = 0;
  }

  Wire& wire_;
  std::int64_t bucket_bytes_;
  const FolderPlan* plan_;  // or null
  std::unordered_map<std::string_view, const checkpoint::TensorSpec*> planned_;
  std::unordered_set<std::string> seen_;
  Tensor bucket_;  // bytes of the tensors that wait
  std::int64_t filled_ = 0;
  Writer pieces_;  // what lies in the bucket
  Xxh64 hash_;
  SyncReport report_;
};

}  // namespace

SyncReport send(Wire& wire, const SenderConfig& config, const FolderPlan* plan,
                function_ref<void(AddTensor)> produce) {
  SyncReport report;
  try {
    Sender sender(wire, config, plan);
    produce([&](std::string_view name, const Tensor& tensor) { sender.add(name, tensor); });
    report = sender.finish();
  } catch (...) {
    if (!wire.broken()) send_message(wire, Kind::abort, words_of(std::current_exception()), {});
    throw;
  }
  agree_on_success(wire, nullptr);  // that every rank has the weights
  agree_on_success(wire, nullptr);  // and has put them in place
  return report;
}

}  // namespace mgfl::weight_sync::detail

/// Sends a model's weights, tensor by tensor under Hugging Face names, to the other ranks of a group.
// Mirrors verl's BucketedWeightSender.async_send_weights.
#pragma once

#include <cstdint>
#include <ranges>
#include <string_view>

#include "mgfl/base/function_ref.hpp"
#include "policies/weight_sync/wire.hpp"

namespace mgfl::weight_sync {

struct SenderConfig {
  std::int64_t bucket_bytes = 256 << 20;  // of values in one message; small tensors travel together
};

namespace detail {

using AddTensor = function_ref<void(std::string_view name, const Tensor& tensor)>;

/// `produce` is called once, with what it must call for each tensor. `plan` may be null.
SyncReport send(Wire& wire, const SenderConfig& config, const FolderPlan* plan,
                function_ref<void(AddTensor)> produce);

template <std::ranges::input_range R, parallel::Communicator C>
SyncReport send(R&& weights, const FolderPlan* plan, C& group, const SenderConfig& config) {
  WireOver<C> wire(group, group.rank());
  return send(wire, config, plan, [&](AddTensor add) {
    for (auto&& [name, tensor] : weights) add(name, tensor);
  });
}

}  // namespace detail

/// Sends every (name, tensor) pair of the range from this rank to all others of `group`, which call
/// receive_weights or, after send_hf_folder, receive_hf_folder with this rank as root. Collective, blocking.
///
/// The range is walked once, tensors may have any strides and lie on any device. Beyond what the range holds,
/// memory is a bucket and a copy of one tensor where that is strided or on a device. An exception of the
/// range, and a UserError for a tensor that is undefined, sparse, of a dtype that safetensors lacks, or named
/// twice, ends the sync on every rank with its words, and is rethrown here. RunError where a receiver failed.
/// Nothing is kept between syncs. After an error the group can be used again, unless the group itself threw.
template <std::ranges::input_range R, parallel::Communicator C>
SyncReport send_weights(R&& weights, C& group, const SenderConfig& config = {}) {
  return detail::send(weights, nullptr, group, config);
}

/// The same with the folder's plan ahead, so that receive_hf_folder can write each tensor where it belongs
/// while the next ones are under way. UserError where the range gives other tensors than the plan says; any
/// order will do.
template <std::ranges::input_range R, parallel::Communicator C>
SyncReport send_hf_folder(R&& weights, const FolderPlan& plan, C& group, const SenderConfig& config = {}) {
  return detail::send(weights, &plan, group, config);
}

/// What the other tensor-parallel ranks of a sending engine do meanwhile: each walks its own range, since the
/// sender's elements are gathered from all of them. They are no members of the group that is sent to. Where
/// the sender fails half way, they wait for it until their group's deadline.
template <std::ranges::input_range R>
void walk_along(R&& weights) {
  for ([[maybe_unused]] auto&& element : weights) {
  }
}

}  // namespace mgfl::weight_sync

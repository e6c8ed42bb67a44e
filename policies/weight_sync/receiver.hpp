/// Takes the weights that another rank of the group sends: tensor by tensor, or as a model folder.
// Mirrors verl's BucketedWeightReceiver.receive_weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "mgfl/base/function_ref.hpp"
#include "policies/bridge/hf_weights.hpp"
#include "policies/weight_sync/wire.hpp"

namespace mgfl::weight_sync {

/// Takes one whole tensor, contiguous, in host memory. A sink may keep it, together with its storage, which
/// may be larger where an earlier tensor was and was not kept.
using TensorSink = function_ref<void(const std::string& name, const Tensor& tensor)>;

namespace detail {

SyncReport receive_weights(Wire& wire, TensorSink sink);
SyncReport receive_hf_folder(Wire& wire, const std::filesystem::path& folder, std::uint64_t shard_limit);

}  // namespace detail

/// Calls `sink` for each tensor in the order of sending. All ranks of `group` but `root` call it, while root
/// sends. Collective, blocking: each wait has the group's deadline, so come when the sender is about to.
///
/// Memory is a bucket and one tensor. RunError on every rank where the sender gave up, with its words; where
/// what came is not what was sent, by count, bytes or hash; and where the sink threw on some rank: that rank
/// gets its own exception back, and takes the rest of the weights without its sink, so that the ranks end
/// together.
template <parallel::Communicator C>
SyncReport receive_weights(C& group, int root, TensorSink sink) {
  detail::WireOver<C> wire(group, root);
  return detail::receive_weights(wire, sink);
}

/// Rebuilds the model folder that send_hf_folder sends: weights as HfWeightsWriter writes them, and
/// config.json. The folder, of this rank alone, is replaced at once after the hash was checked, or stays as
/// it was; other files in it are kept. UserError where the sender sent no plan; otherwise as receive_weights.
template <parallel::Communicator C>
SyncReport receive_hf_folder(C& group, int root, const std::filesystem::path& folder,
                             std::uint64_t shard_limit = bridge::kDefaultShardLimit) {
  detail::WireOver<C> wire(group, root);
  return detail::receive_hf_folder(wire, folder, shard_limit);
}

}  // namespace mgfl::weight_sync

/// What both ends of a weight sync share: its report, the plan of a model folder, and the messages between
/// them.
// Mirrors verl.workers.rollout.vllm_rollout.bucketed_weight_transfer, over collectives in place of ZMQ.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/staging.hpp"
#include "policies/checkpoint/safetensors.hpp"

namespace mgfl::weight_sync {

/// What went from the sender to every receiver; the same on all ranks.
struct SyncReport {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
  std::uint64_t hash = 0;  // XXH64 of names, dtypes, shapes and values in the order of sending
};

/// A model folder before its weights: all tensors, in the order in which shards take them, and the text of
/// config.json.
struct FolderPlan {
  std::vector<checkpoint::TensorSpec> specs;
  std::string config_json;
};

namespace detail {

/// The two collectives of a communicator that a sync uses, on tensors in host memory.
class Wire {
 public:
  Wire(int rank, int size, int root) : rank_(rank), size_(size), root_(root) {}
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int root() const { return root_; }  // the sender

  void broadcast(Tensor& tensor, int from) {
    broken_ = true;
    broadcast_on_group(tensor, from);
    broken_ = false;
  }
  void max(Tensor& tensor) {
    broken_ = true;
    max_on_group(tensor);
    broken_ = false;
  }
  /// Whether a collective has thrown; then the ranks no longer stand at the same place, and no message may
  /// follow.
  bool broken() const { return broken_; }

 private:
  virtual void broadcast_on_group(Tensor& tensor, int from) = 0;
  virtual void max_on_group(Tensor& tensor) = 0;

  int rank_, size_, root_;
  bool broken_ = false;
};

template <parallel::Communicator C>
class WireOver final : public Wire {
 public:
  WireOver(C& group, int root) : Wire(group.rank(), group.size(), root), group_(group) {}

 private:
  void broadcast_on_group(Tensor& tensor, int from) override {
    parallel::run_staged(tensor, parallel::get_device_type_for_comm(group_, parallel::device_type_of(tensor)),
                         [&](Tensor& staged) { group_.broadcast(staged, from); });
  }
  void max_on_group(Tensor& tensor) override { parallel::all_reduce_staged(tensor, ReduceOp::max, group_); }

  C& group_;
};

enum class Kind : std::int64_t { plan = 1, bucket, end, abort };

/// One message but for its payload, which follows when `payload_bytes` is not 0.
struct Message {
  Kind kind;
  std::string text;  // encoded by Writer
  std::int64_t payload_bytes;
};

/// Part of a tensor in a bucket: `bytes` of its values, the first of which is byte `begin`.
struct Piece {
  checkpoint::TensorSpec tensor;
  std::int64_t begin = 0, bytes = 0;
};

/// Numbers and texts as bytes.
class Writer {
 public:
  void number(std::int64_t value);
  void text(std::string_view value);
  void spec(const checkpoint::TensorSpec& value);
  const std::string& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

 private:
  std::string bytes_;
};

/// The way back. RunError where the bytes end too early or say what no Writer writes.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  std::int64_t number();
  std::string text();
  checkpoint::TensorSpec spec();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(std::int64_t bytes);
  std::string_view rest_;
};

/// A piece of host memory as a tensor of bytes, which the caller keeps alive.
Tensor bytes_at(const void* memory, std::int64_t bytes);

/// Sends from the root. `payload`: bytes, or an undefined tensor.
void send_message(Wire& wire, Kind kind, std::string_view text, Tensor payload);

/// The root's next message. RunError where it is none.
Message receive_message(Wire& wire);

/// What an exception says.
std::string words_of(const std::exception_ptr& failure);

/// Throws on every rank where any has a `failure`: there that one, elsewhere a RunError with the words of the
/// lowest rank that failed. Collective.
void agree_on_success(Wire& wire, const std::exception_ptr& failure);

}  // namespace detail
}  // namespace mgfl::weight_sync

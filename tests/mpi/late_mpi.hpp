/// A communicator over Mpi that has a start_all_reduce, whose reductions come as late as they may.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/mpi.hpp"

namespace mgfl_test {

/// Mpi, whose started reductions do nothing before their end. Until then their tensor is NaN throughout: who
/// reads it early spreads that, and who writes to it early is found out. All groups made of one another tell
/// one log what they do.
class LateMpi {
 public:
  struct Log {
    std::vector<std::string> events;
    int disturbed = 0;               // tensors that somebody wrote to meanwhile
    mgfl::Tensor watched;            // where defined, each event keeps a copy of it
    std::vector<mgfl::Tensor> seen;  // as it was before each event
    void add(std::string event) {
      events.push_back(std::move(event));
      if (watched.defined()) seen.push_back(watched.clone());
    }
  };

  LateMpi(mgfl::parallel::Mpi group, std::shared_ptr<Log> log)
      : group_(std::move(group)), log_(std::move(log)) {}

  class Pending {
   public:
    Pending(mgfl::parallel::Mpi& group, Log& log, mgfl::Tensor& tensor, mgfl::ReduceOp op)
        : group_(&group), log_(&log), tensor_(tensor), own_(tensor.clone()), op_(op) {
      log.add("start");
      tensor_.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    Pending(Pending&& other) noexcept
        : group_(std::exchange(other.group_, nullptr)),
          log_(other.log_),
          tensor_(std::move(other.tensor_)),
          own_(std::move(other.own_)),
          op_(other.op_) {}
    Pending& operator=(Pending&&) = delete;
    /// As every communicator's; the log tells it from a wait that was asked for.
    ~Pending() { end("left to its scope"); }

    void wait() { end("wait"); }

   private:
    void end(std::string_view event) {
      if (group_ == nullptr) return;
      log_->add(std::string(event));
      if (tensor_.isnan().sum().item<std::int64_t>() != tensor_.numel()) ++log_->disturbed;
      tensor_.copy_(own_);
      std::exchange(group_, nullptr)->all_reduce(tensor_, op_);
    }

    mgfl::parallel::Mpi* group_;
    Log* log_;
    mgfl::Tensor tensor_, own_;
    mgfl::ReduceOp op_;
  };

  Pending start_all_reduce(mgfl::Tensor& tensor, mgfl::ReduceOp op) { return {group_, *log_, tensor, op}; }

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  c10::DeviceType device_type_for_comm() const { return group_.device_type_for_comm(); }
  void all_reduce(mgfl::Tensor& tensor, mgfl::ReduceOp op) { group_.all_reduce(tensor, op); }
  void reduce_scatter(const mgfl::Tensor& whole, mgfl::Tensor& part, mgfl::ReduceOp op) {
    group_.reduce_scatter(whole, part, op);
  }
  void broadcast(mgfl::Tensor& tensor, int root) { group_.broadcast(tensor, root); }
  void all_gather(const mgfl::Tensor& part, mgfl::Tensor& gathered) { group_.all_gather(part, gathered); }
  void reduce_scatter_v(const mgfl::Tensor& whole, mgfl::Tensor& part, std::span<const std::int64_t> counts,
                        mgfl::ReduceOp op) {
    group_.reduce_scatter_v(whole, part, counts, op);
  }
  void all_gather_v(const mgfl::Tensor& part, mgfl::Tensor& gathered, std::span<const std::int64_t> counts) {
    group_.all_gather_v(part, gathered, counts);
  }
  void all_to_all(const mgfl::Tensor& sent, mgfl::Tensor& received) { group_.all_to_all(sent, received); }
  void all_to_all_v(const mgfl::Tensor& sent, std::span<const std::int64_t> send_counts,
                    mgfl::Tensor& received, std::span<const std::int64_t> receive_counts) {
    group_.all_to_all_v(sent, send_counts, received, receive_counts);
  }
  void send(const mgfl::Tensor& tensor, int to) { group_.send(tensor, to); }
  void recv(mgfl::Tensor& tensor, int from) { group_.recv(tensor, from); }
  void exchange(std::span<const mgfl::parallel::Transfer> transfers) { group_.exchange(transfers); }
  void barrier() { group_.barrier(); }
  std::int64_t all_reduce_value(std::int64_t value, mgfl::ReduceOp op) {
    return group_.all_reduce_value(value, op);
  }
  double all_reduce_value(double value, mgfl::ReduceOp op) { return group_.all_reduce_value(value, op); }
  LateMpi split(int color, int key, std::string_view name = "split") {
    return {group_.split(color, key, name), log_};
  }

 private:
  mgfl::parallel::Mpi group_;
  std::shared_ptr<Log> log_;
};

static_assert(mgfl::parallel::WholeCommunicator<LateMpi> && mgfl::parallel::HasAsyncAllReduce<LateMpi> &&
              !mgfl::parallel::HasAsyncAllReduce<mgfl::parallel::Mpi>);

}  // namespace mgfl_test

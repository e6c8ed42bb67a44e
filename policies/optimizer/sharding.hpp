/// How data-parallel ranks share the optimizer's work: each does all of it, or its shard.
// Sharded mirrors megatron.core.optimizer.distrib_optimizer.DistributedOptimizer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mgfl/parallel/communicator.hpp"
#include "policies/distributed/param_and_grad_buffer.hpp"
#include "policies/optimizer/param_buffer.hpp"

namespace mgfl::optimizer {

/// Every rank of the data-parallel group holds the whole state and makes the same update.
struct Replicated {
  static void cut(ParamBuffer&, int, int) {}

  template <parallel::Communicator C>
  static void reduce_grads(ParamBuffer& buffer, C& group) {
    const ReduceOp op = distributed::gradient_reduce_preprocessing(buffer.main_grads, {}, group.size());
    group.all_reduce(buffer.main_grads, op);
  }
  template <parallel::Communicator C>
  static void gather_values(ParamBuffer&, C&) {}
  template <parallel::Communicator C>
  static void reduce_over_shards(Tensor&, ReduceOp, C&) {}
  template <parallel::Communicator C>
  static void gather_state(const ParamBuffer&, const Tensor&, std::int64_t, Tensor&, C&) {}
};

/// ZeRO-1: each rank updates its shard of the flat buffers, in rank order. All calls but cut are collective.
struct Sharded {
  static void cut(ParamBuffer& buffer, int rank, int size) { shard(buffer, rank, size); }

  /// The shard's gradients become sums over ranks, with the bits of an all_reduce; the others stay this
  /// rank's.
  template <parallel::WholeCommunicator C>
  static void reduce_grads(ParamBuffer& buffer, C& group) {
    auto own = buffer.owned(buffer.main_grads);
    const ReduceOp op = distributed::gradient_reduce_preprocessing(buffer.main_grads, {}, group.size());
    group.reduce_scatter_v(buffer.main_grads, own, buffer.counts, op);
  }

  /// Every rank gets the weights of all shards.
  template <parallel::WholeCommunicator C>
  static void gather_values(ParamBuffer& buffer, C& group) {
    group.all_gather_v(buffer.owned(buffer.values), buffer.values, buffer.counts);
  }

  /// Puts together what each rank found in its shard.
  template <parallel::WholeCommunicator C>
  static void reduce_over_shards(Tensor& numbers, ReduceOp op, C& group) {
    group.all_reduce(numbers, op);
  }

  /// Elements [first, first + n) of a state whose shards the ranks hold, in `whole` [n] on the group's first
  /// rank.
  template <parallel::WholeCommunicator C>
  static void gather_state(const ParamBuffer& buffer, const Tensor& state, std::int64_t first, Tensor& whole,
                           C& group) {
    const auto last = first + whole.numel();
    std::int64_t begin = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto end = begin + buffer.counts[static_cast<std::size_t>(rank)];
      const auto from = std::max(first, begin), to = std::min(last, end);
      if (from < to) {
        auto into = whole.narrow(0, from - first, to - from);
        if (rank == group.rank()) {
          const auto own = state.narrow(0, from - begin, to - from);
          if (rank == 0)
            into.copy_(own);
          else
            group.send(own, 0);
        } else if (group.rank() == 0) {
          group.recv(into, rank);
        }
      }
      begin = end;
    }
  }
};

}  // namespace mgfl::optimizer

/// A tensor-parallel group without its communicator's type, so that a model is compiled once for all of them.
#pragma once

#include <type_traits>

#include "mgfl/base/error.hpp"
#include "mgfl/base/function_ref.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/parallel/param.hpp"

namespace mgfl::parallel {

/// Borrows a group, of which it knows a few collectives; one indirect call each. Made of nothing it is a
/// group of one, whose collectives must not be called.
class TensorParallelGroup {
 public:
  TensorParallelGroup() = default;

  /// UserError for several ranks of a communicator that has no reduce_scatter.
  template <Communicator C>
  explicit TensorParallelGroup(C& group) : place_{group.rank(), group.size()}, group_(&group) {
    if constexpr (HasReduceScatter<C>)
      calls_ = &calls_of<C>;
    else
      check_user(group.size() == 1,
                 "tensor parallelism: this communicator has no reduce_scatter; write one, or use "
                 "tensor-model-parallel-size 1.");
  }

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  TensorParallelPlace place() const { return place_; }

  void all_reduce(Tensor& tensor, ReduceOp op = ReduceOp::sum) const {
    calls_->all_reduce(group_, tensor, op);
  }
  /// The sum over ranks, while `work` runs where the communicator can, else before it.
  void all_reduce_during(Tensor& tensor, function_ref<void()> work) const {
    calls_->all_reduce_during(group_, tensor, work);
  }
  /// whole [size, ...shape of part].
  void all_gather(const Tensor& part, Tensor& whole) const { calls_->all_gather(group_, part, whole); }
  /// part [rows of whole / size, ...]: the sum over ranks.
  void reduce_scatter(const Tensor& whole, Tensor& part) const {
    calls_->reduce_scatter(group_, whole, part);
  }

 private:
  struct Calls {
    void (*all_reduce)(void*, Tensor&, ReduceOp);
    void (*all_reduce_during)(void*, Tensor&, function_ref<void()>);
    void (*all_gather)(void*, const Tensor&, Tensor&);
    void (*reduce_scatter)(void*, const Tensor&, Tensor&);
  };
  template <class C>
  static constexpr Calls calls_of{
      [](void* group, Tensor& tensor, ReduceOp op) { static_cast<C*>(group)->all_reduce(tensor, op); },
      [](void* group, Tensor& tensor, function_ref<void()> work) {
        auto& c = *static_cast<C*>(group);
        if constexpr (HasAsyncAllReduce<C>) {
          auto pending = c.start_all_reduce(tensor, ReduceOp::sum);
          work();
          pending.wait();
        } else {
          c.all_reduce(tensor, ReduceOp::sum);
          work();
        }
      },
      [](void* group, const Tensor& part, Tensor& whole) { static_cast<C*>(group)->all_gather(part, whole); },
      [](void* group, const Tensor& whole, Tensor& part) {
        static_cast<C*>(group)->reduce_scatter(whole, part, ReduceOp::sum);
      }};

  TensorParallelPlace place_;
  void* group_ = nullptr;
  const Calls* calls_ = nullptr;
};

/// How a model's layers are shared by ranks.
struct ModelParallel {
  TensorParallelGroup tensor_parallel = {};
  bool sequence_parallel = false;                 // between linear layers every tp rank holds its own tokens
  std::int64_t make_vocab_size_divisible_by = 1;  // and by the number of tp ranks
};

}  // namespace mgfl::parallel

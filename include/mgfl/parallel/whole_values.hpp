/// Parameters of tensor-parallel ranks as the logical ones that they are parts of, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mgfl/parallel/param.hpp"
#include "mgfl/parallel/tensor_parallel_group.hpp"

namespace mgfl::parallel {

/// Values that ranks share lie in memory for the largest of them, in turn; those that this rank holds whole
/// are where they were.
class WholeValues {
 public:
  /// Borrows parameters, values and group. Memory, allocated here and touched by the first gather: one
  /// logical parameter and a window of some 16 MB. `scratch`: another object's, to share it. RunError for
  /// parameters that are cut for another number of ranks.
  explicit WholeValues(std::span<const ParamRef> params, TensorParallelGroup group = {},
                       const Tensor& scratch = {});
  WholeValues(WholeValues&&) = default;  // parameters point at descriptions and values
  WholeValues& operator=(WholeValues&&) = default;

  /// In the order of the given ones: logical shapes, described as one rank's.
  std::span<const ParamRef> params() const { return params_; }

  /// Makes the value of one parameter on every rank, and unmakes the one before it. Collective over the group
  /// where ranks share the parameter; does nothing elsewhere.
  void gather(std::size_t param);

  /// Whether any value is made by gather.
  bool is_shared() const { return !shared_.empty(); }
  const Tensor& scratch() const { return scratch_; }  // undefined where none is

 private:
  TensorParallelGroup group_;
  std::vector<ParamRef> locals_;
  std::vector<ParamDesc> descs_;
  Tensor scratch_;              // flat
  std::vector<Tensor> shared_;  // views of it, of parameters' shapes; empty: nothing is shared
  std::vector<ParamRef> params_;
};

}  // namespace mgfl::parallel

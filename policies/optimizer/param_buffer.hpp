/// Flat memory for all parameters of a rank: weights, main weights, main gradients; and the part of it that
/// the rank's optimizer works on.
// Mirrors megatron.core.distributed.param_and_grad_buffer._ParamAndGradBuffer.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/parallel/param.hpp"
#include "mgfl/parallel/whole_values.hpp"

namespace mgfl::optimizer {

/// What an optimizer updates: the same elements of each flat buffer, as views.
struct Shard {
  Tensor values;       // [n] model dtype
  Tensor main_params;  // [n] main dtype; the same memory as `values` where the dtypes agree
  Tensor main_grads;   // [n] main dtype
};

/// Every parameter's `value` and `main_grad` become views of these. Each parameter starts on a 64-element
/// border; the elements between are zero for ever.
struct ParamBuffer {
  std::vector<ParamRef> params;
  std::vector<std::int64_t> offsets;  // of each parameter
  std::int64_t numel = 0;
  std::int64_t begin = 0, end = 0;   // this rank's optimizer updates elements [begin, end): all, or its shard
  std::vector<std::int64_t> counts;  // elements of each data-parallel rank's shard; empty: not sharded
  Tensor values;                     // [numel] model dtype
  Tensor main_params;  // [end - begin] main dtype; a view of `values` where the dtypes agree; undefined:
                       // forward only
  Tensor main_grads;   // [numel] main dtype; undefined: forward only

  /// This parameter's part of any flat tensor [numel], in the parameter's shape.
  Tensor view(const Tensor& flat, std::size_t param) const;

  /// Elements [begin, end) of a flat tensor [numel].
  Tensor owned(const Tensor& flat) const { return flat.narrow(0, begin, end - begin); }
  /// Those of them that are the parameter's, flat; possibly none.
  Tensor owned(const Tensor& flat, std::size_t param) const;
  /// Those of them that count here in statistics over all ranks, see parallel::counted_numel.
  Tensor counted(const Tensor& flat, std::size_t param) const;

  bool is_whole() const { return begin == 0 && end == numel; }
  Shard shard() const { return {owned(values), main_params, owned(main_grads)}; }
};

/// A flat state [end - begin] of main dtype (main weights, a moment), seen as this tensor-parallel rank's
/// parameters: views of it where this rank holds all of it, else made one at a time in memory for the largest
/// one.
class LocalParams {
 public:
  /// Borrows the buffer. `scratch`: another object's, to share its memory.
  LocalParams(const ParamBuffer& buffer, Tensor state, Tensor scratch = {});
  LocalParams(LocalParams&&) = default;  // parameters point at values

  /// Values of a shard share memory: one of them holds at a time.
  std::span<const ParamRef> params() const { return params_; }
  const Tensor& state() const { return state_; }
  const Tensor& scratch() const { return scratch_; }  // undefined where this rank holds the whole state
  bool is_shard() const { return scratch_.defined(); }

  /// Copies what is this rank's of the value into the state.
  void keep(std::size_t param);

 private:
  const ParamBuffer* buffer_;
  Tensor state_, scratch_;
  std::vector<Tensor> values_;
  std::vector<ParamRef> params_;
};

/// Such a state as logical parameters, of which tensor-parallel ranks hold parts, and data-parallel ranks
/// shards of these. What is not there whole is made one at a time, see MixedPrecisionOptimizer::gather, in
/// memory for the largest part and the largest logical parameter.
class WholeParams {
 public:
  /// Memory that several states share.
  struct Scratch {
    Tensor local, logical;
  };

  /// Borrows buffer and group. `scratch`: another object's, to share its memory.
  WholeParams(const ParamBuffer& buffer, Tensor state, parallel::TensorParallelGroup group = {},
              const Scratch& scratch = {})
      : local_(buffer, std::move(state), scratch.local), whole_(local_.params(), group, scratch.logical) {}

  std::span<const ParamRef> params() const { return whole_.params(); }
  Scratch scratch() const { return {local_.scratch(), whole_.scratch()}; }

  /// Whether values share memory, so that one of them holds at a time.
  bool is_made() const { return local_.is_shard() || whole_.is_shared(); }

  const LocalParams& local() const { return local_; }
  /// Makes the logical value of the local ones, which are there. Collective over the tensor-parallel group.
  void gather_parts(std::size_t param) { whole_.gather(param); }

 private:
  LocalParams local_;
  parallel::WholeValues whole_;  // of the local ones
};

/// Lays the parameters out and points their values at the buffer (contents: zero). Gradients and main weights
/// are made by allocate_training.
ParamBuffer allocate_weights(std::vector<ParamRef> params, at::ScalarType model_dtype);

/// Cuts the buffer into a shard for each rank, in rank order and on 64-element borders, so that vector
/// kernels do with an element what they would do unsharded. Shards may be uneven, and empty. Before
/// allocate_training.
void shard(ParamBuffer& buffer, int rank, int size);

/// Adds main weights (copies of the weights as they are now) and zeroed main gradients.
void allocate_training(ParamBuffer& buffer, at::ScalarType main_dtype);

/// Lets `fill` write main weights over the weights as they are now, whole parameters of main dtype. They lie
/// in the gradients' memory meanwhile, which is zero again afterwards.
void fill_main_params(ParamBuffer& buffer, function_ref<void(std::span<const ParamRef>)> fill);

/// Moves the weights, the main weights or the gradients to a kind of device, contents and views with them.
/// Main weights that are the weights move with these.
void move_weights(ParamBuffer& buffer, c10::DeviceType device);
void move_main_params(ParamBuffer& buffer, c10::DeviceType device);
void move_grads(ParamBuffer& buffer, c10::DeviceType device);

}  // namespace mgfl::optimizer

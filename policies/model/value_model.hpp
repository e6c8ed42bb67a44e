/// The transformer with a value head: a critic, one value a position.
#pragma once

#include "policies/model/decoder.hpp"

namespace mgfl::model {

/// Model contract of Engine, as Decoder; made from a config with value_head. Has no logits to ask for.
class ValueModel : private Decoder {
 public:
  using Decoder::bridge_type;
  using Decoder::checkpoint_type;
  using Decoder::config_type;
  using Decoder::workspace_type;
  using output_type = ValueOutput;
  using loss_input_type = ValueLossInput;
  static constexpr Head head_kind = Head::value;

  explicit ValueModel(const TransformerConfig& config, const parallel::ModelParallel& parallel = {});

  using Decoder::allocate_grads;
  using Decoder::backward;
  using Decoder::config;
  using Decoder::enable_fused_kernels;
  using Decoder::finalize_grads;
  using Decoder::forward;
  using Decoder::initialize;
  using Decoder::move_grads;
  using Decoder::parameters;
  using Decoder::zero_grads;

  using Decoder::final_layernorm;
  using Decoder::layers;
  using Decoder::word_embeddings;
  ValueHead& head() { return *value_head; }

  /// No weight of a critic is tied.
  template <class Groups>
  void allreduce_embedding_grad(const Groups&) {}

  /// The value of every position: hidden . weight + bias, in fp32 (fp64). There is nothing else to ask for.
  ValueOutput head_forward(Workspace& workspace, const HeadRequest&) const;

  /// Gradient of sum(d_output * output) with respect to the head's weight and bias (accumulated) and input.
  void head_backward(Workspace& workspace, const ValueOutput& d_output);
};

}  // namespace mgfl::model

/// Which Hugging Face tensors a parameter of ours is made of: one table a family of models, read in both
/// directions.
// Mirrors megatron.bridge.models' MegatronMappingRegistry with AutoMapping, QKVMapping and GatedMLPMapping.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mgfl/parallel/param.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/model/transformer_config.hpp"

namespace mgfl::bridge {

/// A tensor's name and shape.
struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// One Hugging Face tensor inside one of ours.
struct HfTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // as the Hugging Face file has it
  // Of the fused tensor, no copy: its elements in row-major order are those of `shape`, but it may have more
  // dimensions, since the rows of q lie apart: `view.reshape(shape)` copies them together,
  // `view.copy_(source.view(view.sizes()))` loads.
  Tensor view;
};

/// One of our parameters and the Hugging Face tensors in it.
struct Mapping {
  NamedShape param;  // Megatron's name, fused shape
  std::vector<NamedShape> hf;
};

/// What the whole model is made of, in the order of the forward pass.
std::vector<Mapping> mappings(const model::TransformerConfig& config);

/// Our parameters of the whole model, with Megatron's names and fused shapes, in the order of the forward
/// pass.
std::vector<NamedShape> parameters(const model::TransformerConfig& config);

/// The Hugging Face tensors of the whole model, in the same order.
std::vector<NamedShape> hf_parameters(const model::TransformerConfig& config);

/// The Hugging Face tensors within `fused`, a tensor of the parameter's shape: its value, gradient or
/// optimizer state. Rows of a padded vocabulary are left out. RunError when the table has no such parameter
/// or the shape is not the config's.
std::vector<HfTensor> hf_tensors(const model::TransformerConfig& config, const ParamDesc& desc,
                                 const Tensor& fused);

}  // namespace mgfl::bridge

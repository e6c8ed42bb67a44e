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

/// Neighbouring rows of a Hugging Face tensor that lie together in one of our logical parameters.
struct HfRows {
  std::int64_t first = 0, fused = 0, count = 0;  // first row there, first row here, number of rows
};

/// One Hugging Face tensor inside one of our logical parameters, row by row.
struct HfPart {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<HfRows> rows;
};

/// What the whole model is made of, in the order of the forward pass.
std::vector<Mapping> mappings(const model::TransformerConfig& config);

/// Our parameters of the whole model, with Megatron's names and fused shapes, in the order of the forward
/// pass.
std::vector<NamedShape> parameters(const model::TransformerConfig& config);

/// The Hugging Face tensors of the whole model, in the same order.
std::vector<NamedShape> hf_parameters(const model::TransformerConfig& config);

/// The Hugging Face tensors within `fused`, a tensor of the parameter's logical shape: its value, gradient or
/// optimizer state. Rows of a padded vocabulary are left out. RunError when the table has no such parameter
/// or the shape is not the config's.
std::vector<HfTensor> hf_tensors(const model::TransformerConfig& config, const ParamDesc& desc,
                                 const Tensor& fused);

/// The Hugging Face tensors of which a parameter is made; `local` is this tensor-parallel rank's part of one,
/// and only looked at. RunError as hf_tensors, or where `local` has another shape than a part.
std::vector<HfPart> hf_parts(const model::TransformerConfig& config, const ParamDesc& desc,
                             const Tensor& local);

/// local <- the rows or columns of `source`, which is the whole Hugging Face tensor `part`, that this
/// tensor-parallel rank holds, converted. Rows of a padded vocabulary become zero.
void take_part(const ParamDesc& desc, const HfPart& part, const Tensor& source, Tensor& local);

}  // namespace mgfl::bridge

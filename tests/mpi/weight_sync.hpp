/// The weights of a fixture as pairs, for tests that send them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/tensor/lean.hpp"
#include "policies/bridge/hf_weights.hpp"

namespace mgfl_test {

using NamedTensors = std::vector<std::pair<std::string, mgfl::Tensor>>;

/// Copies of all tensors of a model folder, in another dtype if one is given.
inline NamedTensors weights_of(const std::string& folder,
                               std::optional<at::ScalarType> dtype = std::nullopt) {
  const mgfl::bridge::HfWeights file(folder);
  NamedTensors weights;
  for (const std::string& name : file.names())
    weights.emplace_back(name, file.tensor(name).to(dtype.value_or(file.dtype(name))).clone());
  return weights;
}

}  // namespace mgfl_test

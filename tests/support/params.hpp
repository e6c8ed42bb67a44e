/// Parameters without a model: a flat buffer of any shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "policies/optimizer/param_buffer.hpp"
#include "tests/support/engines.hpp"

namespace mgfl::test {

/// Parameters of these shapes in one buffer, of which this is shard `place->first` of `place->second`.
/// Matrices decay.
struct Params {
  using Shapes = std::vector<std::vector<std::int64_t>>;

  Params(const Shapes& shapes, at::ScalarType model, at::ScalarType main,
         std::optional<std::pair<int, int>> place = {}, const std::vector<std::string>& names = {})
      : descs(shapes.size()), values(shapes.size()), grads(shapes.size()) {
    std::vector<ParamRef> params;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      descs[i].name = names.empty() ? concat("weight ", i) : names[i];
      descs[i].shape = shapes[i];
      descs[i].weight_decay = shapes[i].size() > 1;
      params.push_back({&descs[i], &values[i], &grads[i]});
    }
    buffer = optimizer::allocate_weights(params, model);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i].copy_(waves(values[i].numel(), 0.3 + 0.1 * static_cast<double>(i)).view(values[i].sizes()));
    if (place) optimizer::shard(buffer, place->first, place->second);
    optimizer::allocate_training(buffer, main);
  }
  Params(const Params&) = delete;  // the buffer points at the members

  std::vector<ParamDesc> descs;
  std::vector<Tensor> values, grads;
  optimizer::ParamBuffer buffer;
};

}  // namespace mgfl::test

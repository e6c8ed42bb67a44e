/// A tensor with a copy of a vector's values.
#pragma once

#include <algorithm>
#include <vector>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::program {

/// [values.size()] of `dtype`, which must be T's own.
template <class T>
Tensor tensor_of(const std::vector<T>& values, at::ScalarType dtype) {
  auto out = empty({static_cast<std::int64_t>(values.size())}, dtype);
  std::copy(values.begin(), values.end(), out.template data_ptr<T>());
  return out;
}

}  // namespace mgfl::program

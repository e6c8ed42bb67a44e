/// A tensor with a copy of a vector's values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

/// CPU tensor [values.size()] of T's own dtype: std::int64_t gives int64, float fp32.
template <class T>
Tensor tensor_of(const std::vector<T>& values) {
  auto out = empty({static_cast<std::int64_t>(values.size())}, c10::CppTypeToScalarType<T>::value);
  std::copy(values.begin(), values.end(), out.template data_ptr<T>());
  return out;
}

}  // namespace mgfl

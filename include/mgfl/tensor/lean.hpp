/// LibTorch's Tensor with its methods and nothing else: write `a.add(b)`, never `a + b` (that header costs
/// seven seconds).
#pragma once

#include <ATen/core/Tensor.h>

#include "mgfl/tensor/fwd.hpp"

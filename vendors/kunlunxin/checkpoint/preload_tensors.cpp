#include "vendors/kunlunxin/checkpoint/preload_tensors.hpp"

#include "mgfl/override/dispatch.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

std::vector<Tensor> implementation<targets::preload_tensors, vendors::kunlunxin>::call(
    std::span<const Tensor> tensors, bool) {
  return dispatch_next<targets::preload_tensors, vendors::kunlunxin>(tensors, /*non_blocking=*/false);
}

}  // namespace mgfl

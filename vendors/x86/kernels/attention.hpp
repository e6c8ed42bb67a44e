/// Causal attention over packed documents by register-tiled products for x86-64; what the kernels compute is
/// said in policies/kernels/kernels_decl.hpp.
#pragma once

#include "policies/kernels/kernels_decl.hpp"
#include "vendors/x86/manifest.hpp"

namespace mgfl {

template <>
struct implementation<targets::attention, vendors::x86> : overrides<targets::attention, vendors::x86> {
  static void call(const Tensor& qkv, const Tensor& cu_seqlens, const kernels::AttentionShape& shape,
                   Tensor& out, Tensor& lse);
};

template <>
struct implementation<targets::attention_backward, vendors::x86>
    : overrides<targets::attention_backward, vendors::x86> {
  static void call(const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                   const Tensor& cu_seqlens, const kernels::AttentionShape& shape, Tensor& dqkv);
};

}  // namespace mgfl

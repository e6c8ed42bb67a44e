#include "vendors/x86/kernels/attention.hpp"

#include "vendors/x86/run.h"

namespace mgfl {

namespace {

/// Whether simd/attention.cpp covers the shape; what it does not cover, odd head sizes and malformed bounds
/// included, is the original's.
bool fits(const Tensor& cu_seqlens, const kernels::AttentionShape& shape, std::int64_t tokens) {
  const std::int64_t d = shape.layout.head_dim;
  if (d <= 0 || d % x86::head_dim_step != 0 || d > x86::largest_attention_head) return false;
  if (!(shape.scale > 0) || shape.window < 0 || tokens >= (std::int64_t{1} << 24)) return false;
  if (cu_seqlens.scalar_type() != at::kInt || !cu_seqlens.is_contiguous() || cu_seqlens.numel() < 1)
    return false;
  const auto* bounds = x86::in<std::int32_t>(cu_seqlens);
  const std::int64_t documents = cu_seqlens.numel() - 1;
  for (std::int64_t i = 0; i < documents; ++i)
    if (bounds[i] > bounds[i + 1]) return false;
  return bounds[0] == 0 && bounds[documents] == tokens;
}

x86::Attention raw(const Tensor& cu_seqlens, const kernels::AttentionShape& shape, std::int64_t tokens) {
  const auto& layout = shape.layout;
  return {x86::in<std::int32_t>(cu_seqlens),
          cu_seqlens.numel() - 1,
          tokens,
          layout.groups,
          layout.queries_per_group,
          layout.head_dim,
          shape.window,
          static_cast<float>(shape.scale)};
}

}  // namespace

void implementation<targets::attention, vendors::x86>::call(const Tensor& qkv, const Tensor& cu_seqlens,
                                                            const kernels::AttentionShape& shape, Tensor& out,
                                                            Tensor& lse) {
  const std::int64_t tokens = qkv.size(0);
  const bool done = fits(cu_seqlens, shape, tokens) && x86::run({{qkv, out}, {lse}}, [&]<class D>(D) {
                      x86::attention(x86::in<D>(qkv), raw(cu_seqlens, shape, tokens), x86::out<D>(out),
                                     x86::out<float>(lse), num_threads());
                    });
  if (!done) implementation<targets::attention, vendors::original>::call(qkv, cu_seqlens, shape, out, lse);
}

void implementation<targets::attention_backward, vendors::x86>::call(const Tensor& dout, const Tensor& qkv,
                                                                     const Tensor& out, const Tensor& lse,
                                                                     const Tensor& cu_seqlens,
                                                                     const kernels::AttentionShape& shape,
                                                                     Tensor& dqkv) {
  const std::int64_t tokens = qkv.size(0);
  const bool done =
      fits(cu_seqlens, shape, tokens) && x86::run({{dout, qkv, out, dqkv}, {lse}}, [&]<class D>(D) {
        x86::attention_backward(x86::in<D>(dout), x86::in<D>(qkv), x86::in<D>(out), x86::in<float>(lse),
                                raw(cu_seqlens, shape, tokens), x86::out<D>(dqkv), num_threads());
      });
  if (!done)
    implementation<targets::attention_backward, vendors::original>::call(dout, qkv, out, lse, cu_seqlens,
                                                                         shape, dqkv);
}

}  // namespace mgfl

#include "policies/kernels/kernels_decl.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/mm_ops.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "policies/kernels/main_dtype.hpp"

namespace mgfl {
namespace {

using kernels::AttentionShape;

/// Scores of so many query rows exist at once (times the queries that share a kv head).
constexpr std::int64_t chunk_rows = 256;

/// Query rows [begin, end) of a document and the keys [first_key, end) of which they see some.
struct Chunk {
  std::int64_t begin, end, first_key;

  std::int64_t rows() const { return end - begin; }
  std::int64_t keys() const { return end - first_key; }
};

/// Calls body(first token, length, group) for every document that is not empty, and every kv head.
template <class Body>
void for_each_document_and_group(const Tensor& cu_seqlens, const AttentionShape& shape, Body body) {
  const Tensor on_host = cu_seqlens.cpu();
  const auto* bounds = on_host.const_data_ptr<std::int32_t>();
  for (std::int64_t d = 0; d + 1 < cu_seqlens.numel(); ++d)
    for (std::int64_t group = 0; group < shape.layout.groups; ++group)
      if (bounds[d + 1] > bounds[d])
        body(std::int64_t{bounds[d]}, std::int64_t{bounds[d + 1]} - bounds[d], group);
}

template <class Body>
void for_each_chunk(std::int64_t length, std::int64_t window, Body body) {
  for (std::int64_t begin = 0; begin < length; begin += chunk_rows)
    body(Chunk{begin, std::min(begin + chunk_rows, length),
               window > 0 ? std::max<std::int64_t>(0, begin - window + 1) : 0});
}

/// [rows, keys], true where the key lies ahead of the query or behind its window.
Tensor hidden_keys(const Chunk& chunk, std::int64_t window, at::Device device) {
  const auto positions = [&](std::int64_t begin, std::int64_t end) {
    return at::_ops::arange_start::call(begin, end, at::kLong, c10::nullopt, device, c10::nullopt);
  };
  const Tensor distance =
      positions(chunk.begin, chunk.end).unsqueeze(1).sub(positions(chunk.first_key, chunk.end));
  const Tensor ahead = distance.lt(0);
  return window > 0 ? ahead.bitwise_or(distance.ge(window)) : ahead;
}

/// [length, queries, head_dim] -> rows of the chunk as a matrix [queries * rows, head_dim] of dtype M.
Tensor query_major(const Tensor& heads, const Chunk& chunk, at::ScalarType m) {
  return heads.narrow(0, chunk.begin, chunk.rows()).transpose(0, 1).to(m).reshape({-1, heads.size(2)});
}

/// scale * q . k, [queries, rows, keys]; minus infinity where a key is hidden. q is scaled already.
Tensor masked_scores(const Tensor& scaled_q, const Tensor& keys, const Chunk& chunk, std::int64_t window) {
  Tensor scores = at::_ops::mm::call(scaled_q, keys.t()).view({-1, chunk.rows(), chunk.keys()});
  return scores.masked_fill_(hidden_keys(chunk, window, scores.device()),
                             -std::numeric_limits<double>::infinity());
}

/// One document's part of one group, heads as [length, heads, head_dim]; keys and values as matrices of dtype
/// M.
struct GroupView {
  Tensor queries, keys, values;
};

Tensor part(const Tensor& rows, std::int64_t first, std::int64_t length, std::int64_t group,
            std::int64_t groups, std::int64_t head_dim) {
  return rows.view({rows.size(0), groups, -1, head_dim}).narrow(0, first, length).select(1, group);
}

GroupView view_group(const Tensor& heads, const AttentionShape& shape, at::ScalarType m) {
  const std::int64_t queries = shape.layout.queries_per_group;
  return {heads.narrow(1, 0, queries), heads.select(1, queries).to(m).contiguous(),
          heads.select(1, queries + 1).to(m).contiguous()};
}

}  // namespace

void implementation<targets::attention, vendors::original>::call(const Tensor& qkv, const Tensor& cu_seqlens,
                                                                 const AttentionShape& shape, Tensor& out,
                                                                 Tensor& lse) {
  const auto m = kernels::main_dtype(qkv.scalar_type());
  const std::int64_t groups = shape.layout.groups, queries = shape.layout.queries_per_group;
  const std::int64_t head_dim = shape.layout.head_dim;
  for_each_document_and_group(
      cu_seqlens, shape, [&](std::int64_t first, std::int64_t length, std::int64_t group) {
        const GroupView in = view_group(part(qkv, first, length, group, groups, head_dim), shape, m);
        const Tensor out_heads = part(out, first, length, group, groups, head_dim);
        const Tensor lse_heads = lse.narrow(0, group * queries, queries).narrow(1, first, length);
        for_each_chunk(length, shape.window, [&](const Chunk& chunk) {
          const Tensor keys = in.keys.narrow(0, chunk.first_key, chunk.keys());
          const Tensor values = in.values.narrow(0, chunk.first_key, chunk.keys());
          const Tensor scores =
              masked_scores(query_major(in.queries, chunk, m).mul(shape.scale), keys, chunk, shape.window);
          // softmax, not e^(scores - lse): lse in the thousands is rounded to three decimals in fp32.
          const Tensor probs = scores.softmax(-1).view({-1, chunk.keys()});
          const Tensor mixed = at::_ops::mm::call(probs, values).view({queries, chunk.rows(), head_dim});
          out_heads.narrow(0, chunk.begin, chunk.rows()).copy_(mixed.transpose(0, 1));
          lse_heads.narrow(1, chunk.begin, chunk.rows()).copy_(scores.logsumexp(-1));
        });
      });
}

// With p = e^(s - lse) and delta = dout . out:
// ds = p (dout . v - delta), dq = scale ds k, dk = ds^T (scale q), dv = p^T dout.
void implementation<targets::attention_backward, vendors::original>::call(
    const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& cu_seqlens,
    const AttentionShape& shape, Tensor& dqkv) {
  const auto m = kernels::main_dtype(qkv.scalar_type());
  const std::int64_t groups = shape.layout.groups, queries = shape.layout.queries_per_group;
  const std::int64_t head_dim = shape.layout.head_dim;
  for_each_document_and_group(
      cu_seqlens, shape, [&](std::int64_t first, std::int64_t length, std::int64_t group) {
        const GroupView in = view_group(part(qkv, first, length, group, groups, head_dim), shape, m);
        const Tensor d_heads = part(dqkv, first, length, group, groups, head_dim);
        const Tensor out_heads = part(out, first, length, group, groups, head_dim);
        const Tensor d_out_heads = part(dout, first, length, group, groups, head_dim);
        const Tensor lse_heads = lse.narrow(0, group * queries, queries).narrow(1, first, length);
        const Tensor d_keys = in.keys.new_zeros({length, head_dim}),
                     d_values = in.keys.new_zeros({length, head_dim});
        for_each_chunk(length, shape.window, [&](const Chunk& chunk) {
          const auto visible = [&](const Tensor& rows) {
            return rows.narrow(0, chunk.first_key, chunk.keys());
          };
          const Tensor scaled_q = query_major(in.queries, chunk, m).mul(shape.scale);
          const Tensor d_out = query_major(d_out_heads, chunk, m);
          const Tensor delta = d_out.mul(query_major(out_heads, chunk, m)).sum(-1, /*keepdim=*/true);
          const Tensor log_sum = lse_heads.narrow(1, chunk.begin, chunk.rows()).unsqueeze(-1);
          const Tensor probs = masked_scores(scaled_q, visible(in.keys), chunk, shape.window)
                                   .sub_(log_sum)
                                   .exp_()
                                   .view({-1, chunk.keys()});
          const Tensor d_scores = at::_ops::mm::call(d_out, visible(in.values).t()).sub_(delta).mul_(probs);
          visible(d_values).addmm_(probs.t(), d_out);
          visible(d_keys).addmm_(d_scores.t(), scaled_q);
          const Tensor d_q = at::_ops::mm::call(d_scores, visible(in.keys)).mul_(shape.scale);
          d_heads.narrow(0, chunk.begin, chunk.rows())
              .narrow(1, 0, queries)
              .copy_(d_q.view({queries, chunk.rows(), head_dim}).transpose(0, 1));
        });
        d_heads.select(1, queries).copy_(d_keys);
        d_heads.select(1, queries + 1).copy_(d_values);
      });
}

}  // namespace mgfl

#include "policies/rl/response_tokens.hpp"

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl::rl {

Tensor ResponseTokens::select(const Tensor& values, const char* name) const {
  check_user(values.defined(), "response tokens: ", name, " is missing.");
  check_user(values.numel() == packed_tokens, "response tokens: ", name, " has ", values.numel(),
             " values for ", packed_tokens, " tokens.");
  return values.reshape({-1}).index_select(0, positions).to(at::kDouble);
}

Tensor ResponseTokens::sequence_sum(const Tensor& values) const {
  return lengths.mul(0.0).index_add(0, sequence, values);
}

Tensor ResponseTokens::per_token(const Tensor& values) const { return values.index_select(0, sequence); }

ResponseTokens response_tokens(const Tensor& response_mask, const Tensor& cu_seqlens) {
  check_user(response_mask.defined(), "response tokens: response_mask is missing.");
  check_user(cu_seqlens.defined() && cu_seqlens.numel() >= 1 && cu_seqlens.scalar_type() == at::kInt,
             "response tokens: cu_seqlens must be int32 [sequences + 1].");
  const auto tokens = response_mask.numel(), sequences = cu_seqlens.numel() - 1;
  const auto borders_tensor = cu_seqlens.contiguous();
  const auto* borders = borders_tensor.const_data_ptr<std::int32_t>();
  check_user(borders[0] == 0 && borders[sequences] == tokens, "response tokens: cu_seqlens runs from ",
             borders[0], " to ", borders[sequences], ", expected from 0 to the ", tokens,
             " tokens of response_mask.");
  const auto mask_tensor = response_mask.detach().to(at::kDouble).contiguous();
  const auto* mask = mask_tensor.const_data_ptr<double>();
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    check_user(mask[t] == 0 || mask[t] == 1, "response_mask is ", mask[t], " at position ", t,
               "; it must be 1 on response tokens and 0 elsewhere.");
    count += mask[t] == 1;
  }
  ResponseTokens result{empty({count}, at::kLong), empty({count}, at::kLong), zeros({sequences}, at::kDouble),
                        tokens, 0};
  auto* position = result.positions.data_ptr<std::int64_t>();
  auto* sequence = result.sequence.data_ptr<std::int64_t>();
  for (std::int64_t s = 0; s < sequences; ++s) {
    check_user(borders[s] <= borders[s + 1], "response tokens: cu_seqlens falls from ", borders[s], " to ",
               borders[s + 1], " at sequence ", s, "; it must not decrease.");
    result.filled_sequences += borders[s] < borders[s + 1];
    for (std::int64_t t = borders[s]; t < borders[s + 1]; ++t) {
      if (mask[t] == 0) continue;
      *position++ = t;
      *sequence++ = s;
      result.lengths.data_ptr<double>()[s] += 1;
    }
  }
  return result;
}

}  // namespace mgfl::rl

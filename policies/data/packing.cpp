#include "policies/data/packing.hpp"

#include <limits>

#include "mgfl/base/error.hpp"

namespace mgfl::data {

PackedBatch pack(std::span<const Sample> samples) {
  PackedBatch batch;
  batch.cu_seqlens.push_back(0);
  std::int64_t total = 0;
  for (const Sample& s : samples) total += s.length();
  check_user(total <= std::numeric_limits<std::int32_t>::max(), "A micro-batch has ", total,
             " tokens, but at most 2147483647 fit; make it smaller.");
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const Sample& s : samples) {
    const std::int32_t shift = batch.cu_seqlens.back();
    append(batch.input_ids, s.input_ids);
    append(batch.labels, s.labels);
    append(batch.loss_mask, s.loss_mask);
    append(batch.returns, s.returns);
    for (std::size_t d = 1; d < s.cu_seqlens.size(); ++d) batch.cu_seqlens.push_back(shift + s.cu_seqlens[d]);
  }
  return batch;
}

std::vector<PackedBatch> pack_in_order(std::span<const Sample> samples, std::int64_t max_tokens) {
  check_user(max_tokens > 0, "The cap is ", max_tokens, " tokens per micro-batch; it must be at least 1.");
  std::vector<PackedBatch> batches;
  std::size_t begin = 0;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::int64_t length = samples[i].length();
    check_user(length <= max_tokens, "A sample of ", length, " tokens is longer than the cap of ", max_tokens,
               " tokens per micro-batch; raise --max-tokens-per-micro-batch or shorten the sample.");
    if (length > max_tokens - tokens) {
      batches.push_back(pack(samples.subspan(begin, i - begin)));
      begin = i;
      tokens = 0;
    }
    tokens += length;
  }
  if (begin < samples.size()) batches.push_back(pack(samples.subspan(begin)));
  return batches;
}

}  // namespace mgfl::data

/// Continues prompts token by token with a key/value cache.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/model/decoder.hpp"

namespace mgfl::model {

struct SamplingConfig {
  std::int64_t max_new_tokens = 0;
  bool greedy = true;
  double temperature = 1.0;
  std::int64_t top_k = 0;  // only the k likeliest tokens; 0: all
  double top_p = 1.0;      // only the likeliest tokens that together reach this probability
  std::uint64_t seed = 1234;
};

/// New tokens of each sequence of `prompts`, ending with the model's end-of-sequence token or after
/// max_new_tokens. Sequence i draws from stream `first_stream` + i, so what it gets does not depend on its
/// neighbours. UserError for an empty prompt.
std::vector<std::vector<std::int64_t>> generate(const Decoder& model, const Batch& prompts,
                                                const SamplingConfig& config, std::int64_t first_stream = 0);

}  // namespace mgfl::model

/// Opens what --data and --eval-data name, and turns samples into the engine's batches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mgfl/engine/batch.hpp"
#include "policies/data/dataset.hpp"

namespace mgfl::program {

/// `arguments`: one .safetensors or .jsonl file, or prefixes of .bin/.idx with or without weights.
/// `sequence_length` and `num_samples` concern .bin/.idx alone; `with_returns`: for a value head, which needs
/// another form. UserError with the file's name for whatever cannot be used.
data::Dataset open_data(const std::vector<std::string>& arguments, std::int64_t sequence_length,
                        std::uint64_t seed, bool shuffle, std::optional<std::int64_t> num_samples,
                        bool with_returns);

/// The most tokens that a sample may have, by the flags that say so.
struct SampleLimits {
  std::optional<std::int64_t> sequence_length, max_tokens_per_micro_batch;
};

/// The given samples (data::padding_sample: one without anything to learn), packed; their returns are the
/// token field of that name. UserError naming file, sample and position for a token id outside the
/// vocabulary, and naming file, sample and flag for a sample above a limit.
Batch read_batch(const data::Dataset& dataset, std::span<const std::int64_t> samples, std::int64_t vocab_size,
                 const SampleLimits& limits);

}  // namespace mgfl::program

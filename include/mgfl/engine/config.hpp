/// What a user sets of an engine, and small records that go in and out of its calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>

namespace mgfl {

/// Where the model comes from.
struct ModelConfig {
  std::string local_path = {};   // Hugging Face folder with weights
  std::string config_path = {};  // or: config.json for random weights from `seed`
  std::uint64_t seed = 1234;
};

struct EngineConfig {
  std::int64_t micro_batch_size = 1;                  // sequences
  std::int64_t max_tokens_per_micro_batch = 0;        // > 0: a hard cap of tokens instead
  std::int64_t infer_micro_batch_size = 0;            // of forward-only calls; 0: as above
  std::int64_t infer_max_tokens_per_micro_batch = 0;  // of forward-only calls; 0: as above
  bool forward_only = false;                          // no gradients, no optimizer: a reference model
  // Of language-model heads; a critic has neither.
  bool calculate_entropy = false, calculate_sum_pi_squared = false, calculate_mean_log_probs = false;
  bool use_fused_kernels = true;   // false: closures see whole logits
  bool param_offload = false;      // weights and gradients lie on the host outside train and eval mode
  bool optimizer_offload = false;  // optimizer state lies on the host outside train mode
  c10::DeviceType device = c10::DeviceType::CPU;  // where the engine computes
  bool sequence_parallel = false;  // tensor-parallel ranks share the tokens between linear layers
  std::int64_t make_vocab_size_divisible_by = 1;  // and by the number of tensor-parallel ranks
};

/// How far a training run has come.
struct TrainingPosition {
  std::int64_t iteration = 0;         // finished iterations
  std::int64_t consumed_samples = 0;  // of the training data, skipped steps included
};

/// A low-rank adapter that was trained in place of the weights.
struct PeftConfig {
  std::int64_t rank = 0;
  double alpha = 0;
  std::vector<std::string> target_modules;
};

/// What an inference engine gets: a range of (Hugging Face name, tensor), and whose adapter they are.
template <class Range>
struct PerTensorParams {
  Range params;
  std::optional<PeftConfig> peft_config;
};

}  // namespace mgfl

/// Small engines, random batches to feed them with, and tensors written by hand.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/tensor_of.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "tests/support/fixture.hpp"

namespace mgfl::test {

using Lengths = std::vector<std::int64_t>;

inline Tensor doubles(const std::vector<double>& values) { return tensor_of(values); }
inline Tensor floats(const std::vector<double>& values) { return doubles(values).to(at::kFloat); }
inline Tensor longs(const std::vector<std::int64_t>& values) { return tensor_of(values); }

/// The elements in row-major order.
inline std::vector<double> numbers(const Tensor& tensor) {
  const auto flat = tensor.detach().to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

inline Tensor borders(const Lengths& lengths) {
  std::vector<std::int32_t> result{0};
  for (const auto length : lengths) result.push_back(result.back() + static_cast<std::int32_t>(length));
  return tensor_of(result);
}

/// A whole number in [0, limit).
inline std::int64_t below(std::mt19937_64& random, std::int64_t limit) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
}

/// Random ids, a mask of 0, 0.5 and 1, labels left to the engine.
inline Batch random_batch(std::mt19937_64& random, const Lengths& lengths, std::int64_t vocab_size) {
  Batch batch;
  batch.cu_seqlens = borders(lengths);
  std::vector<std::int64_t> ids;
  std::vector<double> mask;
  for (const auto length : lengths)
    for (std::int64_t t = 0; t < length; ++t) {
      ids.push_back(below(random, vocab_size));
      mask.push_back(0.5 * static_cast<double>(below(random, 3)));
    }
  batch.input_ids = longs(ids);
  batch.loss_mask = floats(mask);
  return batch;
}

/// A number in [-1, 1] for each token: something to feed closures with.
inline Tensor waves(std::int64_t count, double step = 1.7) {
  std::vector<double> values;
  for (std::int64_t t = 0; t < count; ++t) values.push_back(std::sin(step * static_cast<double>(t) + 0.3));
  return doubles(values);
}

/// The context of one process alone.
inline parallel::Context<parallel::Self> self_context() {
  static parallel::Self world, alone;
  return parallel::data_parallel_context(world, alone);
}

inline optimizer::OptimizerConfig adam(double lr = 1e-3) {
  optimizer::OptimizerConfig config;
  config.lr = lr;
  config.adam_beta2 = 0.95;
  config.weight_decay = 0.1;
  return config;
}

/// Of one process, on a constant schedule; not initialized yet.
template <class E>
E engine_of(const std::string& folder, EngineConfig config, optimizer::OptimizerConfig optimizer) {
  return {{folder, "", 1},
          config,
          optimizer,
          constant_schedule(optimizer.lr, optimizer.weight_decay),
          self_context()};
}

template <class P>
auto language_model(const std::string& folder, EngineConfig config = {},
                    optimizer::OptimizerConfig optimizer = adam()) {
  return engine_of<LanguageModelEngine<parallel::Self, P>>(folder, config, optimizer);
}

template <class P>
auto value_model(const std::string& folder, EngineConfig config = {},
                 optimizer::OptimizerConfig optimizer = adam()) {
  return engine_of<ValueModelEngine<parallel::Self, P>>(folder, config, optimizer);
}

/// The batch with another limit of micro-batches: sequences, or a cap of tokens.
inline Batch in_micro_batches_of(Batch batch, std::int64_t sequences) {
  batch.options.micro_batch_size = sequences;
  batch.options.max_tokens_per_micro_batch = 0;
  return batch;
}
inline Batch under_cap(Batch batch, std::int64_t tokens) {
  batch.options.max_tokens_per_micro_batch = tokens;
  return batch;
}

/// Every gradient of the batch's loss, flat, after the gradients of before were zeroed.
template <class Engine, class AnyBatch, class Loss>
Tensor gradients_of(Engine& engine, const AnyBatch& batch, Loss&& loss) {
  engine.optimizer_zero_grad();
  engine.forward_backward_batch(batch, loss);
  return engine.optimizer().main_grads().clone();
}

/// One-token sequences that are all alike but for `a` and the mask: the gradient of a mean of a x log_prob is
/// the mean of the a's, times that of one log_prob.
inline Batch toy_batch(const std::vector<double>& a, const std::vector<double>& mask) {
  Batch batch;
  const auto count = static_cast<std::int64_t>(a.size());
  batch.input_ids = zeros({count}, at::kLong).fill_(5);
  batch.labels = zeros({count}, at::kLong).fill_(9);
  batch.loss_mask = floats(mask);
  batch.cu_seqlens = borders(Lengths(a.size(), 1));
  batch.token_fields.set("a", doubles(a));
  return batch;
}
inline Batch toy_batch(const std::vector<double>& a) {
  return toy_batch(a, std::vector<double>(a.size(), 1.0));
}

/// The toy's loss.
struct ToyLoss {
  LossTerms operator()(const LossInput& input) const {
    const auto& mask = input.batch.loss_mask;
    const auto a = input.batch.token_fields.at("a").to(input.log_probs.scalar_type());
    return {{"loss", input.log_probs.mul(a).mul(mask).sum(), ordered_sum(mask)}};
  }
};

/// Calls visit(HF name, tensor) for every weight or gradient.
template <class Engine, class Visit>
void for_each_hf_tensor(Engine& engine, bool gradients, Visit&& visit) {
  for (const auto& param : engine.param_buffer().params)
    for (const auto& [name, shape, view] :
         bridge::hf_tensors(engine.config(), *param.desc, gradients ? *param.main_grad : *param.value))
      visit(name, view.reshape(shape));
}

/// How far the weights are from the recorded ones after three steps.
struct Step3 {
  double within = 0;  // share of elements within 1.5e-6
  double largest = 0;
  double worst_median = 0;  // of one tensor
};

template <class Engine>
Step3 compare_step3(Engine& engine, const checkpoint::SafetensorsFile& expected) {
  Step3 result;
  std::int64_t total = 0, near = 0;
  for_each_hf_tensor(engine, false, [&](const std::string& name, const Tensor& value) {
    const auto difference =
        value.to(at::kDouble).sub(expected.tensor("step3." + name).to(at::kDouble)).abs().reshape({-1});
    total += difference.numel();
    near += difference.le(1.5e-6).sum().template item<std::int64_t>();
    result.largest = std::max(result.largest, difference.max().template item<double>());
    result.worst_median = std::max(result.worst_median, difference.median().template item<double>());
  });
  result.within = static_cast<double>(near) / static_cast<double>(total);
  return result;
}

}  // namespace mgfl::test

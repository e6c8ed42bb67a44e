// `mgfl bench`: training steps on synthetic tokens, and how near they come to the speed of their matrix
// products alone.
#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "examples/mgfl/commands.hpp"
#include "examples/mgfl/metrics.hpp"
#include "mgfl/override/dispatch.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/kernels/kernels.hpp"
#include "mgfl/base/random.hpp"

namespace mgfl::program {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

constexpr const char* precision_names[] = {"fp32", "bf16", "fp16", "fp64"};  // in the order of Precision

/// One linear layer of the model and how often it runs in a step.
struct Gemm {
  std::int64_t count, tokens, in, out;
  double flops() const {
    return 3.0 * 2.0 * static_cast<double>(count * tokens * in * out);
  }  // forward and two gradients
};

/// Those of one of `tp` tensor-parallel ranks.
std::vector<Gemm> gemms_of(const model::TransformerConfig& config, std::int64_t tokens, std::int64_t tp) {
  const auto context = config.num_attention_heads / tp * config.kv_channels;
  const auto groups = std::max<std::int64_t>(config.num_query_groups / tp, 1);
  const auto qkv = context + 2 * groups * config.kv_channels;
  const auto ffn = config.ffn_hidden_size / tp;
  return {{config.num_layers, tokens, config.hidden_size, qkv},
          {config.num_layers, tokens, context, config.hidden_size},
          {config.num_layers, tokens, config.hidden_size, 2 * ffn},
          {config.num_layers, tokens, ffn, config.hidden_size},
          {1, tokens, config.hidden_size, (config.vocab_size + tp - 1) / tp}};
}

/// Seconds that the step's matrix products take when each runs alone: y = x w^T, dx = dy w, dw = dy^T x, the
/// best of three.
double gemm_seconds(const std::vector<Gemm>& gemms, at::ScalarType dtype) {
  double total = 0;
  for (const auto& gemm : gemms) {
    auto x = zeros({gemm.tokens, gemm.in}, dtype).fill_(0.5),
         w = zeros({gemm.out, gemm.in}, dtype).fill_(0.25);
    auto y = empty({gemm.tokens, gemm.out}, dtype), dw = empty({gemm.out, gemm.in}, dtype);
    double best = 1e30;
    for (int repeat = 0; repeat < 4; ++repeat) {
      const auto start = Clock::now();
      mm_out(x, w.t(), y);
      mm_out(y, w, x);
      mm_out(y.t(), x, dw);
      if (repeat > 0) best = std::min(best, seconds_since(start));
    }
    total += best * static_cast<double>(gemm.count);
  }
  return total;
}

Batch synthetic_batch(std::int64_t sequences, std::int64_t length, std::int64_t vocab, std::uint64_t seed,
                      std::uint64_t stream) {
  Batch batch;
  const auto tokens = sequences * length;
  batch.input_ids = empty({tokens}, at::kLong);
  batch.labels = empty({tokens}, at::kLong);
  auto* ids = batch.input_ids.data_ptr<std::int64_t>();
  auto* labels = batch.labels.data_ptr<std::int64_t>();
  const auto draw = [&](std::uint64_t i) {
    return std::min(static_cast<std::int64_t>(uniform(seed, stream, i) * static_cast<double>(vocab)),
                    vocab - 1);
  };
  for (std::int64_t i = 0; i < tokens; ++i) {
    ids[i] = draw(static_cast<std::uint64_t>(2 * i));
    labels[i] = draw(static_cast<std::uint64_t>(2 * i + 1));
  }
  batch.loss_mask = zeros({tokens}, at::kFloat).fill_(1.0);
  batch.cu_seqlens = empty({sequences + 1}, at::kInt);
  for (std::int64_t s = 0; s <= sequences; ++s)
    batch.cu_seqlens.data_ptr<std::int32_t>()[s] = static_cast<std::int32_t>(s * length);
  return batch;
}

template <class P, class C>
int bench(const BenchOptions& options, Rank<C>& rank) {
  EngineConfig config;
  config.micro_batch_size = options.micro_batch_size;
  config.sequence_parallel = options.parallel.sequence_parallel;
  config.make_vocab_size_divisible_by = options.parallel.make_vocab_size_divisible_by;
  optimizer::OptimizerConfig optimizer_config;
  optimizer_config.lr = 1e-5;
  LanguageModelEngine<C, P> engine({"", options.config_json, static_cast<std::uint64_t>(options.seed)},
                                   config, optimizer_config, constant_schedule(optimizer_config.lr),
                                   rank.context());
  initialize(engine, rank);

  const auto stream = stream_of("bench") + static_cast<std::uint64_t>(rank.data_parallel().rank());
  const auto batch = synthetic_batch(options.micro_batch_size, options.seq_length, engine.config().vocab_size,
                                     static_cast<std::uint64_t>(options.seed), stream);
  double first_step = 0, loss = 0;
  std::vector<double> timed;
  for (std::int64_t step = 0; step < options.warmup + options.steps; ++step) {
    const auto start = Clock::now();
    engine.optimizer_zero_grad();
    loss = engine.forward_backward_batch(batch, SftLoss{}).loss();
    engine.optimizer_step();
    if (step >= options.warmup) timed.push_back(seconds_since(start));
    if (step == 0) first_step = seconds_since(rank.program_start);
  }
  const auto peak = peak_rss_bytes();
  const double step_seconds = median(timed);
  const auto tokens = batch.num_tokens() * rank.data_parallel().size();
  const auto gemms = gemms_of(engine.config(), batch.num_tokens(), rank.context().extents.tp);
  double flops = 0;
  for (const auto& gemm : gemms) flops += gemm.flops();
  rank.world.barrier();
  const double roofline = flops / gemm_seconds(gemms, P::model_dtype);
  if (!rank.is_first()) return 0;

  nlohmann::ordered_json line;
  line["tokens_per_second"] = static_cast<double>(tokens) / step_seconds;
  line["step_seconds"] = step_seconds;
  line["step_seconds_all"] = timed;
  line["gemm_flops"] = flops / step_seconds;
  line["gemm_roofline_flops"] = roofline;
  line["gemm_efficiency"] = flops / step_seconds / roofline;
  line["peak_rss_bytes"] = peak;
  line["first_step_seconds"] = first_step;
  line["loss"] = loss;
  line["vendor"] = std::string(vendors::preferred::name);
  line["kernels"] = std::string(active_vendor<targets::attention>::name);
  line["precision"] = precision_names[static_cast<int>(options.precision.kind())];
  line["threads"] = rank.threads;
  line["layout"] = {{"tp", rank.context().extents.tp},
                    {"pp", 1},
                    {"cp", 1},
                    {"ep", 1},
                    {"dp", rank.data_parallel().size()},
                    {"sequence_parallel", options.parallel.sequence_parallel}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace

template <class C>
int run_bench(const BenchOptions& options, Rank<C>& rank) {
  return with_precision(options.precision,
                        [&](auto p) { return bench<typename decltype(p)::type>(options, rank); });
}

template int run_bench(const BenchOptions&, Rank<parallel::Self>&);
template int run_bench(const BenchOptions&, Rank<parallel::Mpi>&);

}  // namespace mgfl::program

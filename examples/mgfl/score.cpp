// `mgfl score`: log-probabilities, entropies, losses and gradients of given tokens.
#include "examples/mgfl/commands.hpp"
#include "examples/mgfl/token_file.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/checkpoint/safetensors.hpp"

namespace mgfl::program {

namespace {

/// What goes into the output file, in the file's dtype for real numbers.
class Results {
 public:
  explicit Results(at::ScalarType real) : real_(real) {}
  void real(const std::string& name, const Tensor& values) { tensors_.emplace_back(name, values.to(real_)); }
  void number(const std::string& name, double value) { real(name, zeros({1}, at::kDouble).fill_(value)); }
  void integer(const std::string& name, std::int64_t value) {
    tensors_.emplace_back(name, zeros({1}, at::kLong).fill_(value));
  }
  void write(const std::string& path) const { checkpoint::write_safetensors(path, tensors_); }

 private:
  at::ScalarType real_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

template <class P, class C>
int score(const ScoreOptions& options, Rank<C>& rank) {
  auto config = engine_config(options.batch);
  config.forward_only = !options.grads;
  config.calculate_entropy = true;
  LanguageModelEngine<C, P> engine(model_config(options.model, options.seed, rank.world.rank()), config, {},
                                   constant_schedule(0), rank.context());
  initialize(engine, rank);

  auto file = read_token_file(options.input, options.prefix);
  auto& batch = file.batch;
  if (options.temperature != 1.0)
    batch.temperature = zeros({batch.num_tokens()}, at::kDouble).fill_(options.temperature);
  batch = validated(batch, engine.config().vocab_size);

  const auto [first, last] = share_of(batch.num_sequences(), rank.world);
  const auto share = sequences_of(batch, first, last);
  const std::int64_t offset = batch.cu_seqlens.const_data_ptr<std::int32_t>()[first];
  const auto result = engine.forward_backward_batch(share, SftLoss{}, !options.grads);

  // Every rank fills its own tokens in; the sum over ranks is the whole.
  const auto whole = [&](const Tensor& values) {
    auto shape = values.sizes().vec();
    shape[0] = batch.num_tokens();
    auto all = zeros(shape, values.scalar_type());
    all.narrow(0, offset, values.size(0)).copy_(values);
    rank.world.all_reduce(all, ReduceOp::sum);
    return file.in_file_shape(all);
  };
  Results results(P::main_dtype);
  const auto log_probs = whole(result.log_probs);
  results.real("log_probs", log_probs);
  results.real("entropy", whole(result.entropy));
  results.real("token_loss", log_probs.neg());
  results.number("mean_loss", result.loss());
  results.integer("num_tokens",
                  static_cast<std::int64_t>(result.metrics.empty() ? 0 : result.metrics[0].count));
  if (options.logits) results.real("logits", whole(engine.logits(share).to(P::main_dtype)));
  if (options.grads) {
    results.number("grad_norm", engine.optimizer().grad_norm());
    for (const auto& param : engine.param_buffer().params)
      for (const auto& [name, shape, view] :
           bridge::hf_tensors(engine.config(), *param.desc, *param.main_grad))
        results.real("grad." + name, view.reshape(shape));
  }
  if (rank.is_first()) results.write(options.output);
  rank.world.barrier();
  return 0;
}

}  // namespace

template <class C>
int run_score(const ScoreOptions& options, Rank<C>& rank) {
  return with_precision(options.precision,
                        [&](auto p) { return score<typename decltype(p)::type>(options, rank); });
}

template int run_score(const ScoreOptions&, Rank<parallel::Self>&);
template int run_score(const ScoreOptions&, Rank<parallel::Mpi>&);

}  // namespace mgfl::program

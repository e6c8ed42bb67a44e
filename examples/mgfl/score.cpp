// `mgfl score`: log-probabilities and entropies of given tokens, or their values; losses and gradients.
#include "examples/mgfl/commands.hpp"
#include "examples/mgfl/token_file.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/checkpoint/safetensors.hpp"
#include "policies/rl/losses.hpp"

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

/// The file's tokens, with what a value head's loss needs. UserError where a flag needs a tensor that is not
/// there.
template <class E>
TokenFile read_input(const ScoreOptions& options, std::int64_t vocab_size) {
  if constexpr (has_value_head<E>) {
    auto file = read_value_file(options.input, options.prefix, vocab_size);
    const auto need = [&](bool needed, const char* flag, const char* field, const char* name) {
      check_user(!needed || file.packed.batch.token_fields.find(field).defined(), options.input,
                 ": there is no tensor '", file.prefix, name, "', which ", flag, " needs with --value-head.");
    };
    need(options.grads, "--grads", "returns", "returns");
    need(options.value_clip.has_value(), "--value-clip", "returns", "returns");
    need(options.value_clip.has_value(), "--value-clip", "values", "old_values");
    return file;
  } else {
    auto file = read_token_file(options.input, options.prefix, vocab_size);
    if (options.temperature != 1.0)
      file.packed.batch.temperature = zeros({1}, at::kDouble).fill_(options.temperature);
    return file;
  }
}

/// UserError where a sequence is longer than the cap, in the file's words and the flag's.
void check_cap(const ScoreOptions& options, const Batch& batch) {
  if (!options.batch.max_tokens_per_micro_batch) return;
  const auto cap = *options.batch.max_tokens_per_micro_batch;
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s)
    check_user(borders[s + 1] - borders[s] <= cap, options.input, ": sequence ", s, " has ",
               borders[s + 1] - borders[s], " tokens, more than --max-tokens-per-micro-batch ", cap,
               "; shorten it, or raise --max-tokens-per-micro-batch.");
}

/// What the gradients need of an optimizer: that it takes the loss scale off them, and nothing else.
template <class E>
optimizer::OptimizerConfig unscaling_only() {
  optimizer::OptimizerConfig config;
  config.lr = 0;
  if constexpr (E::precision::scales_loss) {
    config.initial_loss_scale = 65536;
    config.hysteresis = 1;  // one overflow, half the scale
  }
  return config;
}

/// Outputs and loss of this rank's share; outputs alone where a value head has no returns to learn.
template <class E>
auto run_share(E& engine, const ScoreOptions& options, const Batch& share) {
  if constexpr (!has_value_head<E>) {
    return engine.forward_backward_batch(share, SftLoss{}, !options.grads);
  } else {
    if (!share.token_fields.find("returns").defined()) return engine.infer_batch(share);
    rl::ValueLoss loss;
    loss.config.cliprange_value = options.value_clip;
    return engine.forward_backward_batch(share, loss, !options.grads);
  }
}

/// The same, and with --grads gradients of the mean: a step with a learning rate of 0 divides them by the
/// loss scale. RunError where they are not finite at any scale. Collective.
template <class E>
auto run_with_gradients(E& engine, const ScoreOptions& options, const Batch& share, double& grad_norm) {
  auto result = run_share(engine, options, share);
  if (!options.grads) return result;
  auto step = engine.optimizer_step();
  while (step.found_inf) {
    check_run(step.loss_scale > 1, options.input, ": the gradients of mean_loss, which is ", result.loss(),
              ", are not finite; look at the input's and the model's numbers, or take a precision of more "
              "range, as fp32.");
    engine.optimizer_zero_grad();
    result = run_share(engine, options, share);
    step = engine.optimizer_step();
  }
  grad_norm = step.grad_norm;
  return result;
}

template <class E, class C>
int score(const ScoreOptions& options, Rank<C>& rank) {
  constexpr auto dtype = E::precision::main_dtype;
  auto config = engine_config(options.batch, options.parallel);
  config.forward_only = !options.grads;
  config.calculate_entropy = !has_value_head<E>;
  E engine(model_config(options.model, options.seed, rank.world.rank()), config, unscaling_only<E>(),
           constant_schedule(0), rank.context());
  initialize(engine, rank);

  const auto file = read_input<E>(options, engine.config().vocab_size);
  const auto& batch = file.packed.batch;
  check_cap(options, batch);
  const auto [first, last] = share_of(batch.num_sequences(), rank.data_parallel());
  const auto share = sequences_of(batch, first, last);
  const std::int64_t offset = batch.cu_seqlens.template const_data_ptr<std::int32_t>()[first];
  double grad_norm = 0;
  const auto result = run_with_gradients(engine, options, share, grad_norm);

  // Every data-parallel rank fills its own tokens in; the sum over ranks is the whole.
  const auto whole = [&](const Tensor& values) {
    auto shape = values.sizes().vec();
    shape[0] = batch.num_tokens();
    auto all = zeros(shape, values.scalar_type());
    all.narrow(0, offset, values.size(0)).copy_(values);
    rank.data_parallel().all_reduce(all, ReduceOp::sum);
    return file.in_file_shape(all);
  };
  Results results(dtype);
  bool has_loss = true;
  if constexpr (has_value_head<E>) {
    results.real("values", whole(result.values.mul(share.labels.ne(ignore_index))));
    has_loss = batch.token_fields.find("returns").defined();
  } else {
    const auto log_probs = whole(result.log_probs);
    results.real("log_probs", log_probs);
    results.real("entropy", whole(result.entropy));
    results.real("token_loss", log_probs.neg());
    if (options.logits) results.real("logits", whole(engine.logits(share).to(dtype)));
  }
  if (has_loss) {
    results.number("mean_loss", result.loss());
    results.integer("num_tokens",
                    static_cast<std::int64_t>(result.metrics.empty() ? 0 : result.metrics[0].count));
  }
  if (options.grads) {
    results.number("grad_norm", grad_norm);
    auto grads = engine.optimizer().whole_params(engine.optimizer().main_grads());
    for (std::size_t i = 0; i < grads.params().size(); ++i) {
      engine.optimizer().gather(grads, i);
      if (!rank.is_first()) continue;
      const auto& param = grads.params()[i];
      for (const auto& [name, shape, view] : bridge::hf_tensors(engine.config(), *param.desc, *param.value))
        results.real("grad." + name, view.reshape(shape).clone());  // the next one may use the same memory
    }
  }
  if (rank.is_first()) results.write(options.output);
  rank.world.barrier();
  return 0;
}

}  // namespace

template <class C>
int run_score(const ScoreOptions& options, Rank<C>& rank) {
  return with_engine<C>(options.precision, options.value_head,
                        [&](auto e) { return score<typename decltype(e)::type>(options, rank); });
}

template int run_score(const ScoreOptions&, Rank<parallel::Self>&);
template int run_score(const ScoreOptions&, Rank<parallel::Mpi>&);

}  // namespace mgfl::program

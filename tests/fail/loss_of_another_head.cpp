// A loss of log-probabilities given to an engine with a value head.
// expected-error: mgfl: a loss takes (const LossInput&) where the engine has a language-model head and (const ValueLossInput&) where it has a value head, and returns LossTerms.
// only-error
// needs LibTorch
#include "policies/engine/megatron_engine.hpp"

using Critic = mgfl::ValueModelEngine<mgfl::parallel::Self, mgfl::optimizer::Fp32>;

double loss(Critic& critic, const mgfl::Batch& batch) {
#ifdef MGFL_TWIN
  const auto closure = [](const mgfl::ValueLossInput& input) -> mgfl::LossTerms {
    return {{"loss", input.values.sum(), 1.0}};
  };
#else
  const auto closure = [](const mgfl::LossInput& input) -> mgfl::LossTerms {
    return {{"loss", input.log_probs.sum(), 1.0}};
  };
#endif
  return critic.forward_backward_batch(batch, closure, true).loss();
}

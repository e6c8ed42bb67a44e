/// The contract of a learning-rate scheduler: it writes the rates of an optimizer's groups and moves on when
/// told to.
#pragma once

#include <concepts>
#include <cstdint>

#include "mgfl/policy/optimizer_base.hpp"

namespace mgfl::scheduler {

/// What schedulers with the signature (optimizer, max_steps, min_lr) are built from, e.g. CosineAnnealingLR.
struct AnnealingConfig {
  std::int64_t max_steps = 1;
  double min_lr = 0.0;
};

/// Moves by an increment (Megatron's trainer counts samples) or by one.
template <class S>
concept StepsByIncrement = requires(S& scheduler) {
  scheduler.step(std::int64_t{1});
};
template <class S>
concept StepsByOne = requires(S& scheduler) {
  scheduler.step();
};

template <class S>
concept BuildsFromAnnealing = std::constructible_from<S, optimizer::Optimizer&, std::int64_t, double>;

template <class S>
struct config_of {
  using type = AnnealingConfig;
};
template <class S>
requires requires { typename S::config_type; }
struct config_of<S> {
  using type = typename S::config_type;
};
template <class S>
using config_of_t = typename config_of<S>::type;

template <class S>
concept BuildsFromConfig = std::constructible_from < S,
        optimizer::Optimizer&, const config_of_t<S>
& > ;

template <class S>
concept SchedulerPolicy = (StepsByIncrement<S> || StepsByOne<S>)&&(BuildsFromConfig<S> ||
                                                                   BuildsFromAnnealing<S>);

}  // namespace mgfl::scheduler

#include "policies/tensor_parallel/random.hpp"

#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/base/random.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/training/random_seed.hpp"

namespace mgfl::tensor_parallel {

namespace original {

namespace {

std::string names_of(const RngStates& states) {
  std::vector<std::string> names;
  for (const auto& [name, state] : states) names.push_back(name);
  return some_of(names);
}

/// UserError where the tracker has no such stream.
RngState& find(RngStates& states, const std::string& name) {
  const auto found = states.find(name);
  check_user(found != states.end(), "CudaRNGStatesTracker: cuda rng state \"", name,
             "\" is not added; there are ", names_of(states), ". Add it first.");
  return found->second;
}

/// The next numbers of a stream, fp64 of `shape`.
Tensor draw(RngState& state, at::IntArrayRef shape) {
  static const auto stream = stream_of("CudaRNGStatesTracker");  // apart from those of initial weights
  auto values = empty(shape, at::kDouble);
  auto* out = values.data_ptr<double>();
  const auto count = values.numel();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = uniform(state.seed, stream, state.position + static_cast<std::uint64_t>(i));
  state.position += static_cast<std::uint64_t>(count);
  return values;
}

void check_fits(const char* function, const Tensor& values) {
  check_user(values.defined(), "CudaRNGStatesTracker: ", function, " was given an undefined tensor.");
  check_user(values.is_floating_point(), "CudaRNGStatesTracker: ", function,
             " fills tensors of floating-point numbers, not of ", c10::toString(values.scalar_type()), ".");
}

}  // namespace

CudaRNGStatesTracker::Fork::Fork(CudaRNGStatesTracker& tracker, const std::string& name) : tracker_(tracker) {
  find(tracker.states_, name);
  before_ = std::exchange(tracker.current_, name);
}

CudaRNGStatesTracker::Fork::~Fork() { tracker_.current_ = std::move(before_); }

void CudaRNGStatesTracker::reset() {
  std::erase_if(states_, [](const auto& entry) { return entry.first != default_rng; });
}

bool CudaRNGStatesTracker::is_initialized() const { return states_.size() > 1; }

void CudaRNGStatesTracker::manual_seed(std::uint64_t seed) { states_[default_rng] = {seed, 0}; }

void CudaRNGStatesTracker::add(const std::string& name, std::uint64_t seed) {
  for (const auto& [other, state] : states_)
    check_user(other == default_rng || state.seed != seed, "CudaRNGStatesTracker: seed ", seed,
               " already exists, for \"", other, "\"; give \"", name,
               "\" another one, or both would draw the same numbers.");
  check_user(states_.try_emplace(name, RngState{seed, 0}).second, "CudaRNGStatesTracker: cuda rng state \"",
             name, "\" already exists; choose another name, or reset() first.");
}

RngStates CudaRNGStatesTracker::get_states() const { return states_; }

void CudaRNGStatesTracker::set_states(RngStates states) {
  check_user(states.contains(default_rng), "CudaRNGStatesTracker: states of ", names_of(states), " lack \"",
             default_rng, "\"; give all that get_states() gave.");
  states_ = std::move(states);
}

CudaRNGStatesTracker::Fork CudaRNGStatesTracker::fork(const std::string& name) { return {*this, name}; }

void CudaRNGStatesTracker::uniform_(Tensor& values) {
  check_fits("uniform_", values);
  values.copy_(draw(find(states_, current_), values.sizes()));
}

void CudaRNGStatesTracker::dropout_mask_(Tensor& mask, double p) {
  check_fits("dropout_mask_", mask);
  check_user(p >= 0 && p <= 1, "CudaRNGStatesTracker: the dropout probability is ", p,
             "; give one from 0 to 1.");
  const auto kept = draw(find(states_, current_), mask.sizes()).gt(p).to(at::kDouble);
  mask.copy_(p < 1 ? kept.mul(1 / (1 - p)) : kept);
}

}  // namespace original

void model_parallel_cuda_manual_seed(CudaRNGStatesTracker& tracker, std::uint64_t seed, int tp_rank,
                                     int ep_rank, int etp_rank) {
  const auto seeds = training::stream_seeds(seed, {.tp = tp_rank, .ep = ep_rank, .etp = etp_rank});
  CudaRNGStatesTracker fresh;  // so that an error leaves the old streams
  fresh.manual_seed(seeds.default_rng);
  fresh.add(data_parallel_rng, seeds.default_rng);
  fresh.add(model_parallel_rng, seeds.model_parallel_rng);
  fresh.add(expert_parallel_rng, seeds.expert_parallel_rng);
  tracker.set_states(fresh.get_states());
}

}  // namespace mgfl::tensor_parallel

/// A class template with the overridable method, as the library's MixedPrecisionOptimizer is one.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "mgfl/parallel/group_list.hpp"
#include "policies/optimizer/unscale_main_grads.hpp"

namespace mgfl_test {

template <mgfl::parallel::Communicator C>
class ScaledGrads {
 public:
  using communicator_type = C;
  ScaledGrads(std::vector<mgfl::Tensor> main_grads, double loss_scale, mgfl::parallel::GroupList<C> groups)
      : main_grads_(std::move(main_grads)), loss_scale_(loss_scale), groups_(std::move(groups)) {}

  bool _unscale_main_grads_and_check_for_nan() { return mgfl::optimizer::unscale_main_grads(*this); }

  bool is_stub_optimizer() const { return main_grads_.empty(); }
  std::span<const mgfl::Tensor> _collect_main_grad_data_for_unscaling() { return main_grads_; }
  double inv_scale() const { return 1.0 / loss_scale_; }
  const mgfl::parallel::GroupList<C>& get_grad_stats_parallel_group() { return groups_; }

 private:
  std::vector<mgfl::Tensor> main_grads_;
  double loss_scale_;
  mgfl::parallel::GroupList<C> groups_;
};

/// The method's body in vendor V.
template <class V, mgfl::parallel::Communicator C>
bool unscale(ScaledGrads<C>& self) {
  return mgfl::implementation<mgfl::targets::unscale_main_grads, V>::template call<ScaledGrads<C>>(self);
}

}  // namespace mgfl_test

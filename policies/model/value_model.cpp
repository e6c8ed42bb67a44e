#include "policies/model/value_model.hpp"

#include "mgfl/base/error.hpp"
#include "mgfl/engine/loss.hpp"
#include "policies/kernels/main_dtype.hpp"

namespace mgfl::model {

ValueModel::ValueModel(const TransformerConfig& config, const parallel::ModelParallel& parallel)
    : Decoder(config, parallel) {
  check_run(value_head.has_value(), "value model: the config describes a language-model head.");
}

ValueOutput ValueModel::head_forward(Workspace& workspace, const HeadRequest&) const {
  const auto& hidden = head_input(workspace);
  const auto main = kernels::main_dtype(hidden.scalar_type());
  auto values = hidden.to(main).matmul(value_head->weight.value.to(main).select(0, 0));
  if (value_head->bias) values.add_(value_head->bias->value.to(main));
  return {values};
}

void ValueModel::head_backward(Workspace& workspace, const ValueOutput& d_output) {
  const auto& input = head_input(workspace);
  const auto& d_values = d_output.values;
  const auto main = kernels::main_dtype(input.scalar_type());
  // Every rank has the whole gradient, of the head and of its input.
  keep_own_rows(workspace, d_values.unsqueeze(1).mul(value_head->weight.value.to(main)));
  value_head->weight.main_grad.add_(d_values.unsqueeze(0).matmul(input.to(main)));
  if (value_head->bias) value_head->bias->main_grad.add_(ordered_sum(d_values));
}

}  // namespace mgfl::model

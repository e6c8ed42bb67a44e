#include "policies/model/initialize.hpp"

#include "mgfl/tensor/factory.hpp"
#include "mgfl/base/random.hpp"

namespace mgfl::model {

void initialize_parameters(std::span<const ParamRef> params, std::uint64_t seed) {
  for (const auto& param : params) {
    const auto& desc = *param.desc;
    if (desc.init_std == 0) {
      param.value->fill_(desc.init_value);
      continue;
    }
    auto values = empty(desc.shape, at::kDouble);
    auto* out = values.data_ptr<double>();
    const auto stream = stream_of(desc.name);
    const auto numel = values.numel();
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < numel; ++i)
      out[i] = desc.init_std * normal(seed, stream, static_cast<std::uint64_t>(i));
    param.value->copy_(values);
  }
}

}  // namespace mgfl::model

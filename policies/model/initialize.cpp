#include "policies/model/initialize.hpp"

#include "mgfl/base/random.hpp"
#include "mgfl/parallel/placement.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl::model {

void initialize_parameters(std::span<const ParamRef> params, std::uint64_t seed) {
  for (const auto& param : params) {
    const auto& desc = *param.desc;
    if (desc.init_std == 0) {
      param.value->fill_(desc.init_value);
      continue;
    }
    auto values = zeros(parallel::local_shape(desc), at::kDouble);
    auto* out = values.data_ptr<double>();
    const auto stream = stream_of(desc.name);
    const std::int64_t columns = desc.shape.back();
    const bool cuts_columns = parallel::split_dimension(desc) == 1;
    const std::int64_t local_columns = values.size(-1);
    for (const auto& piece : parallel::pieces(desc)) {
      // Element (row, column) of the logical parameter has one counter on every layout.
      const auto first_row = cuts_columns ? 0 : piece.logical,
                 first_column = cuts_columns ? piece.logical : 0;
      const auto rows = cuts_columns ? values.size(0) : piece.length;
      const auto width = cuts_columns ? piece.length : columns;
      auto* begin = out + (cuts_columns ? piece.local : piece.local * local_columns);
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < rows * width; ++i) {
        const auto row = i / width, column = i % width;
        begin[row * local_columns + column] =
            desc.init_std *
            normal(seed, stream,
                   static_cast<std::uint64_t>((first_row + row) * columns + first_column + column));
      }
    }
    param.value->copy_(values);
  }
}

}  // namespace mgfl::model

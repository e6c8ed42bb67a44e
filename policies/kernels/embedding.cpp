#include "policies/kernels/kernels_decl.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cstring>

#include "policies/kernels/main_dtype.hpp"

namespace mgfl {
namespace {

/// Threads share the columns, so that each element's sum runs in ascending order of t, however many threads
/// there are.
template <class M>
void add_rows(const Tensor& ids, const Tensor& dout, std::int64_t first_row, Tensor& main_grad) {
  const std::int64_t tokens = ids.numel(), rows = main_grad.size(0), hidden = main_grad.size(1);
  const auto* id = ids.const_data_ptr<std::int64_t>();
  const auto* from = dout.const_data_ptr<M>();
  auto* to = main_grad.data_ptr<M>();
  at::parallel_for(0, hidden, /*grain_size=*/64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t row = id[t] - first_row;
      if (row < 0 || row >= rows) continue;
      for (std::int64_t column = begin; column < end; ++column)
        to[row * hidden + column] += from[t * hidden + column];
    }
  });
}

}  // namespace

void implementation<targets::embedding, vendors::original>::call(const Tensor& ids, const Tensor& w,
                                                                 std::int64_t first_row, Tensor& out) {
  const std::int64_t rows = w.size(0);
  const auto row_bytes = static_cast<std::size_t>(w.size(1)) * w.element_size();
  const auto* id = ids.const_data_ptr<std::int64_t>();
  const auto* from = static_cast<const char*>(w.const_data_ptr());
  auto* to = static_cast<char*>(out.data_ptr());
  at::parallel_for(0, ids.numel(), /*grain_size=*/64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t row = id[t] - first_row;
      if (row >= 0 && row < rows)
        std::memcpy(to + t * row_bytes, from + row * row_bytes, row_bytes);
      else
        std::memset(to + t * row_bytes, 0, row_bytes);
    }
  });
}

void implementation<targets::embedding_backward, vendors::original>::call(const Tensor& ids,
                                                                          const Tensor& dout,
                                                                          std::int64_t first_row,
                                                                          Tensor& main_grad) {
  const auto m = kernels::main_dtype(dout.scalar_type());
  if (m == at::kDouble)
    add_rows<double>(ids, dout, first_row, main_grad);
  else
    add_rows<float>(ids, dout.to(m), first_row, main_grad);
}

}  // namespace mgfl

#include "vendors/x86/kernels/embedding.hpp"

#include <cstring>

#include "vendors/x86/run.h"

namespace mgfl {

void implementation<targets::embedding, vendors::x86>::call(const Tensor& ids, const Tensor& w,
                                                            std::int64_t first_row, Tensor& out) {
  const bool done = ids.is_contiguous() && x86::run({{out, w}, {}}, [&]<class D>(D) {
                      const std::int64_t* id = x86::in<std::int64_t>(ids);
                      const std::int64_t rows = w.size(0), hidden = w.size(1), tokens = ids.size(0);
                      const D* from = x86::in<D>(w);
                      D* to = x86::out<D>(out);
                      const auto bytes = static_cast<std::size_t>(hidden) * sizeof(D);
                      const int threads = num_threads();
#pragma omp parallel for schedule(static) num_threads(threads)
                      for (std::int64_t t = 0; t < tokens; ++t) {
                        const std::int64_t row = id[t] - first_row;
                        if (row >= 0 && row < rows) {
                          std::memcpy(to + t * hidden, from + row * hidden, bytes);
                        } else {
                          std::memset(to + t * hidden, 0, bytes);
                        }
                      }
                    });
  if (!done) implementation<targets::embedding, vendors::original>::call(ids, w, first_row, out);
}

void implementation<targets::embedding_backward, vendors::x86>::call(const Tensor& ids, const Tensor& dout,
                                                                     std::int64_t first_row,
                                                                     Tensor& main_grad) {
  const bool done =
      ids.is_contiguous() && x86::run({{dout}, {main_grad}}, [&]<class D>(D) {
        x86::embedding_backward(x86::in<std::int64_t>(ids), x86::in<D>(dout), first_row, main_grad.size(0),
                                x86::out<float>(main_grad), ids.size(0), dout.size(1), num_threads());
      });
  if (!done)
    implementation<targets::embedding_backward, vendors::original>::call(ids, dout, first_row, main_grad);
}

}  // namespace mgfl

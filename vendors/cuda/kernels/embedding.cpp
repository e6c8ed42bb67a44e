#include "vendors/cuda/kernels/embedding.hpp"

#include "vendors/cuda/operations/embedding.hpp"
#include "vendors/cuda/run.hpp"

namespace mgfl {

void implementation<targets::embedding, vendors::cuda>::call(const Tensor& ids, const Tensor& w,
                                                             std::int64_t first_row, Tensor& out) {
  const cuda::Operands operands{{w, out}, {}, {ids}};
  const bool done = cuda::run("embedding", operands, [&]<class D>(D) {
    return cuda::Embedding<D>{cuda::in<std::int64_t>(ids),
                              cuda::in<D>(w),
                              first_row,
                              cuda::out<D>(out),
                              ids.numel(),
                              w.size(0),
                              w.size(1)};
  });
  if (done) return;
  cuda::check_on_host("embedding", operands);
  implementation<targets::embedding, vendors::original>::call(ids, w, first_row, out);
}

void implementation<targets::embedding_backward, vendors::cuda>::call(const Tensor& ids, const Tensor& dout,
                                                                      std::int64_t first_row,
                                                                      Tensor& main_grad) {
  const cuda::Operands operands{{dout}, {main_grad}, {ids}};
  const bool done = cuda::run("embedding_backward", operands, [&]<class D>(D) {
    using M = cuda::main_of<D>;
    return cuda::EmbeddingBackward<D>{
        cuda::in<std::int64_t>(ids), cuda::in<D>(dout), first_row, cuda::out<M>(main_grad), ids.numel(),
        main_grad.size(0),           main_grad.size(1)};
  });
  if (done) return;
  cuda::check_on_host("embedding_backward", operands);
  implementation<targets::embedding_backward, vendors::original>::call(ids, dout, first_row, main_grad);
}

}  // namespace mgfl

// The norm of a partial sum, before the tensor-parallel ranks have added theirs.
// expected-error(g++): struct mgfl::Act<mgfl::placement::Partial>
// expected-error(clang++): no member named 'tensor' in 'mgfl::Act<placement::Partial>'
// needs LibTorch
#include "mgfl/parallel/activation.hpp"

using namespace mgfl;

void rms_norm(const Tensor& x);

void after_a_row_parallel_layer(const parallel::TensorParallelRegion& region, Tensor& wide, Tensor& own) {
  auto sum = region.partial(wide, own);
  sum.write(4, [](Tensor& rows) { rows.fill_(1.0); });
#ifdef MGFL_TWIN
  const auto whole = region.leave(std::move(sum), own);
  rms_norm(whole.tensor);
#else
  rms_norm(sum.tensor);
#endif
}

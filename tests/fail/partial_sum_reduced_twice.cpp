// A second sum over the ranks of what is whole already.
// expected-error(g++): mgfl::Act<mgfl::placement::Partial>&&
// expected-error(clang++): no viable conversion from 'Act<mgfl::placement::Replicated>' to 'Act<placement::Partial>'
// needs LibTorch
#include "mgfl/parallel/activation.hpp"

using namespace mgfl;

void after_a_row_parallel_layer(const parallel::TensorParallelRegion& region, Tensor& wide, Tensor& own) {
  auto whole = region.leave(region.partial(wide, own), own);
#ifndef MGFL_TWIN
  region.leave(std::move(whole), own);
#endif
}

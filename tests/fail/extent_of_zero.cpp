// Tensor parallelism of no rank.
// expected-error: mgfl: an extent of Megatron<...> is at least 1, or parallel::dynamic.
// needs LibTorch
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl::parallel;

#ifdef MGFL_TWIN
constexpr int size = dynamic;
#else
constexpr int size = 0;
#endif
template struct mgfl::parallel::Megatron<Tp<size>, Pp<1>, Cp<1>, Ep<1>, Self>;

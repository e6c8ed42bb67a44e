// A static extent of an axis that no engine has yet.
// expected-error: mgfl: this version has tensor and data parallelism only; use Pp<1>, Cp<1>, Ep<1>.
// only-error
// needs LibTorch
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl::parallel;

#ifdef MGFL_TWIN
using Stages = Pp<1>;
#else
using Stages = Pp<2>;
#endif
template struct mgfl::parallel::Megatron<Tp<2>, Stages, Cp<1>, Ep<1>, Self>;

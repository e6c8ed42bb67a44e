/// Names of LibTorch's tensor, for declarations that need no more than a reference.
#pragma once

namespace at {
class Tensor;
}

namespace mgfl {
using Tensor = at::Tensor;
}

/// A communicator that plays one rank of a group: what the other ranks would bring to a reduction is given
/// beforehand.
#pragma once

#include <algorithm>
#include <cmath>

#include "mgfl/parallel/communicator.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl_test {

struct Ranks {
  double others = 0;  // the others' sum, or their maximum
  int calls = 0;
  mgfl::ReduceOp last = mgfl::ReduceOp::sum;

  int rank() const { return 0; }
  int size() const { return 2; }
  void all_reduce(mgfl::Tensor& tensor, mgfl::ReduceOp operation) {
    ++calls;
    last = operation;
    double* value = tensor.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      value[i] = operation == mgfl::ReduceOp::sum ? value[i] + others
                                                  : std::fmax(value[i], others);  // drops NaN, as MPI_MAX may
  }
  void broadcast(mgfl::Tensor&, int) {}
  void all_gather(const mgfl::Tensor&, mgfl::Tensor&) {}
  void barrier() {}
};
static_assert(mgfl::parallel::Communicator<Ranks>);

}  // namespace mgfl_test

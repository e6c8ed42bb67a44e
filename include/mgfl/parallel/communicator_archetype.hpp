/// The communicator that stands for all of them where signatures of family targets are compared; nobody ever
/// calls it.
#pragma once

#include "mgfl/parallel/communicator.hpp"

namespace mgfl::parallel {

/// Has what the concept Communicator asks for and no more, so that an override whose constraints ask for more
/// does not compile.
struct communicator_archetype {
  int rank() const;
  int size() const;
  void all_reduce(Tensor& tensor, ReduceOp operation);
  void broadcast(Tensor& tensor, int root);
  void all_gather(const Tensor& part, Tensor& gathered);
  void barrier();
};
static_assert(Communicator<communicator_archetype>);

}  // namespace mgfl::parallel

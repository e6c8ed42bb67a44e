#include "policies/parallel/self.hpp"

#include <cstring>

#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/collective.hpp"

namespace mgfl::parallel {

namespace {

using detail::Operation;
using detail::Problem;

void check(Operation operation, Problem problem) {
  if (problem != Problem::none) detail::refuse(operation, "self", 0, problem);
}

void copy(Operation operation, const Tensor& from, const Tensor& to) {
  check(operation, detail::examine(from));
  check(operation, detail::examine(to));
  const bool fits = from.scalar_type() == to.scalar_type() && from.numel() == to.numel();
  check(operation, fits ? Problem::none : Problem::other_size);
  if (from.nbytes() > 0) std::memmove(to.data_ptr(), from.const_data_ptr(), from.nbytes());
}

}  // namespace

c10::DeviceType Self::device_type_for_comm() const { return at::kCPU; }

void Self::all_reduce(Tensor& tensor, ReduceOp) { check(Operation::all_reduce, detail::examine(tensor)); }

void Self::reduce_scatter(const Tensor& whole, Tensor& part, ReduceOp) {
  copy(Operation::reduce_scatter, whole, part);
}

void Self::broadcast(Tensor& tensor, int root) {
  check(Operation::broadcast, root == 0 ? Problem::none : Problem::root);
  check(Operation::broadcast, detail::examine(tensor));
}

void Self::all_gather(const Tensor& part, Tensor& gathered) { copy(Operation::all_gather, part, gathered); }

Self Self::split(int color, int, std::string_view) {
  check(Operation::split, color >= 0 ? Problem::none : Problem::color);
  return Self{};
}

}  // namespace mgfl::parallel

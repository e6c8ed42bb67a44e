#include "policies/parallel/self.hpp"

#include <cstring>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/collective.hpp"

namespace mgfl::parallel {

namespace {

using detail::Operation;
using detail::Problem;

void check(Operation operation, Problem problem) {
  if (problem != Problem::none) detail::refuse(operation, "self", 0, problem);
}

void copy(const Tensor& from, const Tensor& to) {
  if (from.nbytes() > 0) std::memmove(to.data_ptr(), from.const_data_ptr(), from.nbytes());
}

}  // namespace

c10::DeviceType Self::device_type_for_comm() const { return at::kCPU; }

void Self::all_reduce(Tensor& tensor, ReduceOp op) {
  check(Operation::all_reduce, detail::examine_reduction(tensor, op));
}

std::int64_t Self::all_reduce_value(std::int64_t value, ReduceOp op) {
  check(Operation::all_reduce_value, op == ReduceOp::avg ? Problem::average : Problem::none);
  return value;
}

void Self::reduce_scatter(const Tensor& whole, Tensor& part, ReduceOp op) {
  check(Operation::reduce_scatter, detail::examine_reduce_scatter(whole, part, op, 0, 1));
  copy(whole, part);
}

void Self::reduce_scatter_v(const Tensor& whole, Tensor& part, std::span<const std::int64_t> counts,
                            ReduceOp op) {
  check(Operation::reduce_scatter_v, detail::examine_reduce_scatter_v(whole, part, counts, op, 0, 1));
  copy(whole, part);
}

void Self::broadcast(Tensor& tensor, int root) {
  check(Operation::broadcast, root == 0 ? Problem::none : Problem::root);
  check(Operation::broadcast, detail::examine(tensor));
}

void Self::all_gather(const Tensor& part, Tensor& gathered) {
  check(Operation::all_gather, detail::examine_all_gather(part, gathered, 1));
  copy(part, gathered);
}

void Self::all_gather_v(const Tensor& part, Tensor& gathered, std::span<const std::int64_t> counts) {
  check(Operation::all_gather_v, detail::examine_all_gather_v(part, gathered, counts, 0, 1));
  copy(part, gathered);
}

void Self::all_to_all(const Tensor& sent, Tensor& received) {
  check(Operation::all_to_all, detail::examine_all_to_all(sent, received, 1));
  copy(sent, received);
}

void Self::all_to_all_v(const Tensor& sent, std::span<const std::int64_t> send_counts, Tensor& received,
                        std::span<const std::int64_t> receive_counts) {
  check(Operation::all_to_all_v,
        detail::examine_all_to_all_v(sent, send_counts, received, receive_counts, 1));
  if (send_counts[0] != receive_counts[0])
    throw RunError(
        detail::misfit("self", 0, concat(send_counts[0], " rows"), 0, concat(receive_counts[0], " rows")));
  copy(sent, received);
}

void Self::send(const Tensor& tensor, int to) {
  const Transfer transfers[] = {Transfer::send(tensor, to)};
  check(Operation::send, detail::examine_peers(transfers, 0, 1));
}

void Self::recv(Tensor& tensor, int from) {
  const Transfer transfers[] = {Transfer::receive(tensor, from)};
  check(Operation::recv, detail::examine_peers(transfers, 0, 1));
}

void Self::exchange(std::span<const Transfer> transfers) {
  check(Operation::exchange, detail::examine_peers(transfers, 0, 1));
  auto receive = transfers.begin();
  for (const Transfer& send : transfers) {
    if (send.way != Transfer::Way::send) continue;
    while (receive->way != Transfer::Way::receive) ++receive;
    const Tensor &from = *send.tensor, &to = *receive++->tensor;
    check(Operation::send, detail::examine(from));
    check(Operation::recv, detail::examine(to));
    if (from.scalar_type() != to.scalar_type() || from.numel() != to.numel())
      throw RunError(detail::misfit("self", 0, detail::describe_elements(from.numel(), from.scalar_type()), 0,
                                    detail::describe_elements(to.numel(), to.scalar_type())));
    copy(from, to);
  }
}

Self Self::split(int color, int, std::string_view) {
  check(Operation::split, color >= 0 ? Problem::none : Problem::color);
  return Self{};
}

}  // namespace mgfl::parallel

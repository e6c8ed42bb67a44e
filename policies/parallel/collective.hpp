/// What all communicators share: the names of operations and dtypes, the checks of their tensors, and the
/// reduction.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mgfl/parallel/communicator.hpp"

namespace mgfl::parallel::detail {

enum class Operation : std::int32_t {
  none,
  all_reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  reduce_scatter_v,
  all_gather_v,
  all_to_all,
  all_to_all_v,
  send,
  recv,
  exchange,
  barrier,
  all_reduce_value,
  split,
  start_of_group,
  end_of_group,
  end_of_job,
};

/// What is wrong with a call on one rank, judged there and reported by every rank.
enum class Problem : std::int32_t {
  none,
  undefined,
  device,
  other_device,
  dtype,
  not_contiguous,
  other_size,
  parts,
  counts,
  rows,
  overlap,
  average,
  peer,
  self,
  root,
  color,
};

std::string_view name_of(Operation operation);

/// "fp32", "bf16", ...; LibTorch's name for dtypes that communicators do not carry.
std::string name_of(c10::ScalarType dtype);

/// "3 fp32 elements".
std::string describe_elements(std::int64_t elements, c10::ScalarType dtype);

/// One clause for a message, without the rank, e.g. "its tensor is not contiguous: call contiguous() first".
std::string_view describe(Problem problem);

inline const c10::Device host(c10::DeviceType::CPU);

/// Whether `tensor` can take part: defined, on the group's device, contiguous, of a dtype that communicators
/// carry.
Problem examine(const Tensor& tensor, c10::Device device = host);

/// What is wrong with a call of this kind: each of these ends in the first problem that it finds.
Problem examine_reduction(const Tensor& tensor, ReduceOp op, c10::Device device = host);
Problem examine_all_gather(const Tensor& part, const Tensor& gathered, int size, c10::Device device = host);
Problem examine_all_to_all(const Tensor& sent, const Tensor& received, int size, c10::Device device = host);
Problem examine_reduce_scatter(const Tensor& whole, const Tensor& part, ReduceOp op, int rank, int size,
                               c10::Device device = host);

/// The same with counts of rows along dimension 0, one for each of `size` ranks.
Problem examine_all_gather_v(const Tensor& part, const Tensor& gathered, std::span<const std::int64_t> counts,
                             int rank, int size, c10::Device device = host);
Problem examine_all_to_all_v(const Tensor& sent, std::span<const std::int64_t> send_counts,
                             const Tensor& received, std::span<const std::int64_t> receive_counts, int size,
                             c10::Device device = host);
Problem examine_reduce_scatter_v(const Tensor& whole, const Tensor& part,
                                 std::span<const std::int64_t> counts, ReduceOp op, int rank, int size,
                                 c10::Device device = host);

/// Whether the peers of `transfers` are ranks, and as many go to this rank itself as come from it.
Problem examine_peers(std::span<const Transfer> transfers, int rank, int size);

/// Where a tensor's elements lie.
std::byte* bytes_of(const Tensor& tensor);

/// Each count times `factor`.
std::vector<std::int64_t> scaled(std::span<const std::int64_t> counts, std::int64_t factor);

/// Elements of one row along dimension 0 of a tensor that has one.
std::int64_t row_elements(const Tensor& tensor);

/// The sentence for a call that is wrong on `rank`; it is the same on every rank.
std::string refusal(Operation operation, std::string_view group, int rank, Problem problem);

/// Throws it as a RunError.
[[noreturn]] void refuse(Operation operation, std::string_view group, int rank, Problem problem);

/// A collective call in words, e.g. "all_reduce of 3 fp32 elements by sum"; `dtype` is -1 for calls without a
/// tensor, `argument` the reduction or the root.
std::string describe_call(Operation operation, std::int32_t dtype, std::int64_t elements,
                          std::int64_t argument);

/// The sentences for collective calls that differ between ranks `first` and `other` of the job, the same on
/// every rank.
std::string disagreement(std::string_view group, std::int64_t number, int first, std::string_view first_calls,
                         int other, std::string_view other_calls);
std::string disagreement_in_counts(std::string_view group, std::int64_t number, int first,
                                   std::span<const std::int64_t> first_counts, int other,
                                   std::span<const std::int64_t> other_counts);

/// The sentence for a send and a receive that do not fit, the same on both ranks; the sizes in words.
std::string misfit(std::string_view group, int sender, std::string_view sent, int receiver,
                   std::string_view received);

/// The elements [begin, end) of a large reduction, of which each rank reduces its segment.
struct Slab {
  std::int64_t begin, end, per_rank;
  std::int64_t first(int rank) const { return std::min(end, begin + per_rank * rank); }
  std::int64_t length(int rank) const { return first(rank + 1) - first(rank); }
};

/// The slab that begins at `begin`, of `segment` elements for each of `size` ranks, or what is left.
inline Slab slab_at(std::int64_t begin, std::int64_t elements, std::int64_t segment, int size) {
  const std::int64_t end = std::min(elements, begin + segment * size);
  return {begin, end, (end - begin + size - 1) / size};
}

/// out[i] = parts[0][i] op parts[1][i] op ..., in this order whatever the element's place in its tensor, so
/// that a sum has the same bits in every bucket. 16-bit floats are reduced in fp32 and rounded once; bool
/// sums are "or"; integer sums wrap; a NaN wins every max; avg divides the sum once by `count`, before it is
/// rounded. `out` may be one of the parts.
void reduce_in_order(c10::ScalarType dtype, ReduceOp op, const std::byte* const* parts, int count,
                     std::int64_t elements, std::byte* out);

}  // namespace mgfl::parallel::detail

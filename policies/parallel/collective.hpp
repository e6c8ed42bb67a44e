/// What all communicators share: the names of operations and dtypes, the checks of their tensors, and the
/// reduction.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "mgfl/parallel/communicator.hpp"

namespace mgfl::parallel::detail {

enum class Operation : std::int32_t {
  none,
  all_reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  barrier,
  all_reduce_value,
  split,
  start_of_group,
  end_of_job,
};

/// What is wrong with a call on one rank, judged there and reported by every rank.
enum class Problem : std::int32_t {
  none,
  undefined,
  device,
  dtype,
  not_contiguous,
  other_size,
  root,
  color,
};

std::string_view name_of(Operation operation);

/// "fp32", "bf16", ...; LibTorch's name for dtypes that communicators do not carry.
std::string name_of(c10::ScalarType dtype);

/// One clause for a message, without the rank, e.g. "its tensor is not contiguous: call contiguous() first".
std::string_view describe(Problem problem);

/// Whether `tensor` can take part: defined, on the CPU, contiguous, of a dtype that communicators carry.
Problem examine(const Tensor& tensor);

/// Throws RunError for a call that is wrong on `rank`; the sentence is the same on every rank.
[[noreturn]] void refuse(Operation operation, std::string_view group, int rank, Problem problem);

/// out[i] = parts[0][i] op parts[1][i] op ..., in this order whatever the element's place in its tensor, so
/// that a sum has the same bits in every bucket. 16-bit floats are reduced in fp32 and rounded once; bool
/// sums are "or"; integer sums wrap; a NaN wins every max. `out` may be one of the parts.
void reduce_in_order(c10::ScalarType dtype, ReduceOp op, const std::byte* const* parts, int count,
                     std::int64_t elements, std::byte* out);

}  // namespace mgfl::parallel::detail

#include "policies/parallel/collective.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::parallel::detail {

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::none:
      return "nothing";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_gather:
      return "all_gather";
    case Operation::barrier:
      return "barrier";
    case Operation::all_reduce_value:
      return "all_reduce_value";
    case Operation::split:
      return "split";
    case Operation::start_of_group:
      return "start of a group";
    case Operation::end_of_job:
      return "end of the job";
  }
  return "an unknown operation";
}

std::string name_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "fp32";
    case at::kDouble:
      return "fp64";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(dtype);
  }
}

std::string_view describe(Problem problem) {
  switch (problem) {
    case Problem::none:
      return "nothing is wrong";
    case Problem::undefined:
      return "its tensor is undefined: pass an allocated one";
    case Problem::device:
      return "its tensor is not on the CPU: move it there first";
    case Problem::dtype:
      return "its dtype is not carried: use fp32, fp64, bf16, fp16, int64, int32, uint8 or bool";
    case Problem::not_contiguous:
      return "its tensor is not contiguous: call contiguous() first";
    case Problem::other_size:
      return "its two tensors do not fit: equal dtypes, and the whole one holds the part's elements times "
             "the ranks";
    case Problem::root:
      return "its root is not a rank of the group: pass 0 to size - 1, the same on every rank";
    case Problem::color:
      return "its color is negative: pass 0 or more";
  }
  return "an unknown problem";
}

Problem examine(const Tensor& tensor) {
  if (!tensor.defined()) return Problem::undefined;
  if (!tensor.device().is_cpu()) return Problem::device;
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kLong:
    case at::kInt:
    case at::kByte:
    case at::kBool:
      break;
    default:
      return Problem::dtype;
  }
  return tensor.layout() == at::kStrided && tensor.is_contiguous() ? Problem::none : Problem::not_contiguous;
}

void refuse(Operation operation, std::string_view group, int rank, Problem problem) {
  throw RunError(concat(name_of(operation), " in group '", group, "' is wrong on rank ", rank, ", ",
                        describe(problem), "."));
}

namespace {

// The type in which a reduction is carried out.
template <class T>
struct wide {
  using type = T;
};
template <>
struct wide<at::BFloat16> {
  using type = float;
};
template <>
struct wide<at::Half> {
  using type = float;
};
// Unsigned, so that an overflow wraps instead of being undefined.
template <>
struct wide<std::int64_t> {
  using type = std::uint64_t;
};
template <>
struct wide<std::int32_t> {
  using type = std::uint32_t;
};

template <class T>
struct Sum {
  template <class Wide>
  static Wide combine(Wide a, Wide b) {
    return static_cast<Wide>(a + b);
  }
};

template <class T>
struct Max {
  template <class Wide>
  static Wide combine(Wide a, Wide b) {
    if constexpr (std::is_floating_point_v<Wide>)
      return (a > b || a != a) ? a : b;
    else
      return static_cast<T>(a) > static_cast<T>(b) ? a : b;
  }
};

template <class T, class Op>
void reduce(const std::byte* const* parts, int count, std::int64_t elements, std::byte* out) {
  using Wide = typename wide<T>::type;
  // A block is read from every part before it is written, so `out` may alias a part.
  constexpr std::int64_t block = 2048;
  std::array<Wide, block> sum;
  for (std::int64_t begin = 0; begin < elements; begin += block) {
    const std::int64_t length = std::min(block, elements - begin);
    const T* first = reinterpret_cast<const T*>(parts[0]) + begin;
    for (std::int64_t i = 0; i < length; ++i) sum[i] = static_cast<Wide>(first[i]);
    for (int p = 1; p < count; ++p) {
      const T* part = reinterpret_cast<const T*>(parts[p]) + begin;
      for (std::int64_t i = 0; i < length; ++i) sum[i] = Op::combine(sum[i], static_cast<Wide>(part[i]));
    }
    T* result = reinterpret_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < length; ++i) result[i] = static_cast<T>(sum[i]);
  }
}

template <class T>
void reduce(ReduceOp op, const std::byte* const* parts, int count, std::int64_t elements, std::byte* out) {
  if (op == ReduceOp::sum)
    reduce<T, Sum<T>>(parts, count, elements, out);
  else
    reduce<T, Max<T>>(parts, count, elements, out);
}

}  // namespace

void reduce_in_order(c10::ScalarType dtype, ReduceOp op, const std::byte* const* parts, int count,
                     std::int64_t elements, std::byte* out) {
  switch (dtype) {
    case at::kFloat:
      return reduce<float>(op, parts, count, elements, out);
    case at::kDouble:
      return reduce<double>(op, parts, count, elements, out);
    case at::kBFloat16:
      return reduce<at::BFloat16>(op, parts, count, elements, out);
    case at::kHalf:
      return reduce<at::Half>(op, parts, count, elements, out);
    case at::kLong:
      return reduce<std::int64_t>(op, parts, count, elements, out);
    case at::kInt:
      return reduce<std::int32_t>(op, parts, count, elements, out);
    case at::kByte:
      return reduce<std::uint8_t>(op, parts, count, elements, out);
    case at::kBool:
      // Bytes of 0 and 1: the largest is the "or", for sums too.
      return reduce<std::uint8_t>(ReduceOp::max, parts, count, elements, out);
    default:
      throw RunError(concat("cannot reduce ", name_of(dtype), " elements"));
  }
}

}  // namespace mgfl::parallel::detail

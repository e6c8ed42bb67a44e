#include "policies/parallel/collective.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
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
    case Operation::reduce_scatter_v:
      return "reduce_scatter_v";
    case Operation::all_gather_v:
      return "all_gather_v";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::all_to_all_v:
      return "all_to_all_v";
    case Operation::send:
      return "send";
    case Operation::recv:
      return "recv";
    case Operation::exchange:
      return "exchange";
    case Operation::barrier:
      return "barrier";
    case Operation::all_reduce_value:
      return "all_reduce_value";
    case Operation::split:
      return "split";
    case Operation::start_of_group:
      return "start of a group";
    case Operation::end_of_group:
      return "end of a group";
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

std::string describe_elements(std::int64_t elements, c10::ScalarType dtype) {
  return concat(elements, " ", name_of(dtype), " elements");
}

std::string_view describe(Problem problem) {
  switch (problem) {
    case Problem::none:
      return "nothing is wrong";
    case Problem::undefined:
      return "its tensor is undefined: pass an allocated one";
    case Problem::device:
      return "its tensor is not on the CPU: move it there first";
    case Problem::other_device:
      return "its tensor is not on this rank's GPU, that of its communicator: move it there first";
    case Problem::dtype:
      return "its dtype is not carried: use fp32, fp64, bf16, fp16, int64, int32, uint8 or bool";
    case Problem::not_contiguous:
      return "its tensor is not contiguous: call contiguous() first";
    case Problem::other_size:
      return "its two tensors do not fit: equal dtypes, and the whole one holds the part's elements times "
             "the ranks";
    case Problem::parts:
      return "its two tensors do not fit: equal dtypes and numbers of elements, a multiple of the ranks";
    case Problem::counts:
      return "its counts are no number of 0 or more for each rank of the group";
    case Problem::rows:
      return "its tensors and counts do not fit: equal dtypes, equal shapes behind dimension 0, and as many "
             "rows as the counts add up to";
    case Problem::overlap:
      return "its tensors overlap: give the result memory of its own";
    case Problem::average:
      return "its dtype has no average: sum, and divide as you need";
    case Problem::peer:
      return "its peer is not a rank of the group: pass 0 to size - 1";
    case Problem::self:
      return "its transfers from and to itself do not pair up: put both into one exchange";
    case Problem::root:
      return "its root is not a rank of the group: pass 0 to size - 1, the same on every rank";
    case Problem::color:
      return "its color is negative: pass 0 or more";
  }
  return "an unknown problem";
}

Problem examine(const Tensor& tensor, c10::Device device) {
  if (!tensor.defined()) return Problem::undefined;
  if (device.is_cpu() && !tensor.device().is_cpu()) return Problem::device;
  if (!device.is_cpu() && tensor.device() != device) return Problem::other_device;
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

Problem examine_reduction(const Tensor& tensor, ReduceOp op, c10::Device device) {
  const Problem problem = examine(tensor, device);
  if (problem != Problem::none || op != ReduceOp::avg) return problem;
  return at::isFloatingType(tensor.scalar_type()) ? Problem::none : Problem::average;
}

namespace {

// The first problem of two tensors, or `misfit` unless their dtypes are equal.
Problem examine_pair(const Tensor& one, const Tensor& other, Problem misfit, c10::Device device) {
  for (const Tensor* tensor : {&one, &other})
    if (const Problem problem = examine(*tensor, device); problem != Problem::none) return problem;
  return one.scalar_type() == other.scalar_type() ? Problem::none : misfit;
}

bool overlap(const Tensor& one, const Tensor& other) {
  const auto* a = static_cast<const std::byte*>(one.const_data_ptr());
  const auto* b = static_cast<const std::byte*>(other.const_data_ptr());
  const std::less<> before;
  return one.nbytes() > 0 && other.nbytes() > 0 && before(a, b + other.nbytes()) &&
         before(b, a + one.nbytes());
}

// The result of a reduce_scatter may lie where this rank's own share does, which no other rank is sent.
bool disturbs(const Tensor& part, const Tensor& whole, std::int64_t own_begin) {
  const auto* own = static_cast<const std::byte*>(whole.const_data_ptr()) +
                    own_begin * static_cast<std::int64_t>(whole.element_size());
  return overlap(part, whole) && part.const_data_ptr() != own;
}

Problem examine_counts(std::span<const std::int64_t> counts, int size) {
  const bool valid = static_cast<int>(counts.size()) == size &&
                     std::all_of(counts.begin(), counts.end(), [](std::int64_t count) { return count >= 0; });
  return valid ? Problem::none : Problem::counts;
}

bool has_rows(const Tensor& tensor, std::int64_t rows) { return tensor.dim() > 0 && tensor.size(0) == rows; }

std::int64_t sum_of(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// A whole and one rank's rows of it.
Problem examine_rows(const Tensor& part, const Tensor& whole, std::span<const std::int64_t> counts, int rank,
                     int size, c10::Device device) {
  if (const Problem problem = examine_pair(part, whole, Problem::rows, device); problem != Problem::none)
    return problem;
  if (const Problem problem = examine_counts(counts, size); problem != Problem::none) return problem;
  const bool fits = has_rows(part, counts[static_cast<std::size_t>(rank)]) &&
                    has_rows(whole, sum_of(counts)) && row_elements(part) == row_elements(whole);
  return fits ? Problem::none : Problem::rows;
}

}  // namespace

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

std::vector<std::int64_t> scaled(std::span<const std::int64_t> counts, std::int64_t factor) {
  std::vector<std::int64_t> result(counts.begin(), counts.end());
  for (std::int64_t& count : result) count *= factor;
  return result;
}

std::int64_t row_elements(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return std::accumulate(sizes.begin() + 1, sizes.end(), std::int64_t{1}, std::multiplies<>());
}

Problem examine_all_gather(const Tensor& part, const Tensor& gathered, int size, c10::Device device) {
  const Problem problem = examine_pair(part, gathered, Problem::other_size, device);
  if (problem != Problem::none) return problem;
  return gathered.numel() == part.numel() * size ? Problem::none : Problem::other_size;
}

Problem examine_all_to_all(const Tensor& sent, const Tensor& received, int size, c10::Device device) {
  const Problem problem = examine_pair(sent, received, Problem::parts, device);
  if (problem != Problem::none) return problem;
  if (sent.numel() != received.numel() || sent.numel() % size != 0) return Problem::parts;
  return overlap(sent, received) ? Problem::overlap : Problem::none;
}

Problem examine_reduce_scatter(const Tensor& whole, const Tensor& part, ReduceOp op, int rank, int size,
                               c10::Device device) {
  if (const Problem problem = examine_reduction(whole, op, device); problem != Problem::none) return problem;
  const Problem problem = examine_all_gather(part, whole, size, device);
  if (problem != Problem::none) return problem;
  return disturbs(part, whole, part.numel() * rank) ? Problem::overlap : Problem::none;
}

Problem examine_all_gather_v(const Tensor& part, const Tensor& gathered, std::span<const std::int64_t> counts,
                             int rank, int size, c10::Device device) {
  return examine_rows(part, gathered, counts, rank, size, device);
}

Problem examine_all_to_all_v(const Tensor& sent, std::span<const std::int64_t> send_counts,
                             const Tensor& received, std::span<const std::int64_t> receive_counts, int size,
                             c10::Device device) {
  if (const Problem problem = examine_pair(sent, received, Problem::rows, device); problem != Problem::none)
    return problem;
  for (const auto counts : {send_counts, receive_counts})
    if (const Problem problem = examine_counts(counts, size); problem != Problem::none) return problem;
  if (!has_rows(sent, sum_of(send_counts)) || !has_rows(received, sum_of(receive_counts)) ||
      row_elements(sent) != row_elements(received))
    return Problem::rows;
  return overlap(sent, received) ? Problem::overlap : Problem::none;
}

Problem examine_reduce_scatter_v(const Tensor& whole, const Tensor& part,
                                 std::span<const std::int64_t> counts, ReduceOp op, int rank, int size,
                                 c10::Device device) {
  if (const Problem problem = examine_reduction(whole, op, device); problem != Problem::none) return problem;
  const Problem problem = examine_rows(part, whole, counts, rank, size, device);
  if (problem != Problem::none) return problem;
  const std::int64_t before = sum_of(counts.first(static_cast<std::size_t>(rank)));
  return disturbs(part, whole, before * row_elements(whole)) ? Problem::overlap : Problem::none;
}

Problem examine_peers(std::span<const Transfer> transfers, int rank, int size) {
  int to_itself = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer < 0 || transfer.peer >= size) return Problem::peer;
    if (transfer.peer == rank) to_itself += transfer.way == Transfer::Way::send ? 1 : -1;
  }
  return to_itself == 0 ? Problem::none : Problem::self;
}

std::string refusal(Operation operation, std::string_view group, int rank, Problem problem) {
  return concat(name_of(operation), " in group '", group, "' is wrong on rank ", rank, ", ",
                describe(problem), ".");
}

void refuse(Operation operation, std::string_view group, int rank, Problem problem) {
  throw RunError(refusal(operation, group, rank, problem));
}

namespace {

bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
         operation == Operation::reduce_scatter_v || operation == Operation::all_reduce_value;
}

}  // namespace

std::string describe_call(Operation operation, std::int32_t dtype, std::int64_t elements,
                          std::int64_t argument) {
  std::string text(name_of(operation));
  if (dtype >= 0) {
    text += operation == Operation::all_to_all_v ? " of rows of " : " of ";
    text += describe_elements(elements, static_cast<c10::ScalarType>(dtype));
  }
  if (operation == Operation::broadcast) text += concat(" from ", argument);
  if (reduces(operation)) {
    const auto op = static_cast<ReduceOp>(argument);
    text += op == ReduceOp::sum ? " by sum" : op == ReduceOp::max ? " by max" : " by avg";
  }
  return text;
}

std::string disagreement(std::string_view group, std::int64_t number, int first, std::string_view first_calls,
                         int other, std::string_view other_calls) {
  return concat("the ranks of group '", group, "' disagree in operation ", number, ": rank ", first,
                " calls ", first_calls, ", rank ", other, " calls ", other_calls,
                "; every rank must make the same call.");
}

std::string disagreement_in_counts(std::string_view group, std::int64_t number, int first,
                                   std::span<const std::int64_t> first_counts, int other,
                                   std::span<const std::int64_t> other_counts) {
  return concat("the ranks of group '", group, "' disagree in operation ", number, ": rank ", first,
                " gives the counts ", join(first_counts), ", rank ", other, " the counts ",
                join(other_counts), "; every rank must give the same.");
}

std::string misfit(std::string_view group, int sender, std::string_view sent, int receiver,
                   std::string_view received) {
  return concat("the ranks of group '", group, "' disagree in a transfer: rank ", sender, " sends ", sent,
                ", rank ", receiver, " expects ", received, "; both must name the same.");
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
void reduce(const std::byte* const* parts, int count, std::int64_t elements, std::byte* out, bool average) {
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
    if constexpr (std::is_floating_point_v<Wide>)
      if (average)
        for (std::int64_t i = 0; i < length; ++i) sum[i] /= static_cast<Wide>(count);
    T* result = reinterpret_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < length; ++i) result[i] = static_cast<T>(sum[i]);
  }
}

template <class T>
void reduce(ReduceOp op, const std::byte* const* parts, int count, std::int64_t elements, std::byte* out) {
  if (op == ReduceOp::max)
    reduce<T, Max<T>>(parts, count, elements, out, false);
  else
    reduce<T, Sum<T>>(parts, count, elements, out, op == ReduceOp::avg);
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

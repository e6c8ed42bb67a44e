/// The Communicator concept: what every layer may ask of a group of ranks.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>

#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

enum class ReduceOp { sum, max };

namespace parallel {

template <class C>
concept HasPlace = requires(const C& c) {
  { c.rank() } -> std::same_as<int>;
  { c.size() } -> std::same_as<int>;
};

/// In place, on contiguous tensors; the shape and dtype are the same on every rank. 16-bit floats are summed
/// in fp32 and rounded once. Every rank gets the same bits.
template <class C>
concept HasAllReduce = requires(C& c, Tensor& tensor) {
  c.all_reduce(tensor, ReduceOp::sum);
};

/// Overwrites `tensor` with the root's on every rank.
template <class C>
concept HasBroadcast = requires(C& c, Tensor& tensor) {
  c.broadcast(tensor, int{});
};

/// gathered [size, ...shape of part]: the parts in rank order.
template <class C>
concept HasAllGather = requires(C& c, const Tensor& part, Tensor& gathered) {
  c.all_gather(part, gathered);
};

template <class C>
concept HasBarrier = requires(C& c) {
  c.barrier();
};

/// part [elements of whole / size]: this rank's share, in rank order, of the reduction of every rank's
/// `whole`.
template <class C>
concept HasReduceScatter = requires(C& c, const Tensor& whole, Tensor& part) {
  c.reduce_scatter(whole, part, ReduceOp::sum);
};

/// One number a rank, reduced over all of them: counts, flags, losses.
template <class C>
concept HasAllReduceValue = requires(C& c) {
  { c.all_reduce_value(std::int64_t{}, ReduceOp::sum) } -> std::same_as<std::int64_t>;
  { c.all_reduce_value(double{}, ReduceOp::max) } -> std::same_as<double>;
};

/// A new communicator of the ranks that give the same color >= 0, ordered by key, then by rank; the name
/// appears in messages.
template <class C>
concept HasSplit = requires(C& c) {
  { c.split(int{}, int{}, std::string_view{}) } -> std::same_as<C>;
};

/// A group of ranks. Every call is collective and blocking, with a deadline; failure ends the whole job with
/// a message that names the rank and the operation.
template <class C>
concept Communicator = HasPlace<C> && HasAllReduce<C> && HasBroadcast<C> && HasAllGather<C> && HasBarrier<C>;

/// What a group may say and need not: the kind of device its collectives want their tensors on, e.g. the CPU
/// where its backend is Gloo's.
template <class C>
concept SaysDeviceTypeForComm = requires(const C& c) {
  { c.device_type_for_comm() } -> std::same_as<c10::DeviceType>;
};

/// The kind of device on which `group` takes tensors: the one it says, or `otherwise`.
/// Python: megatron/plugin/utils.py, get_device_type_for_comm
template <Communicator C>
c10::DeviceType get_device_type_for_comm(const C& group, c10::DeviceType otherwise) {
  static_assert(
      SaysDeviceTypeForComm<C> || !requires(C & c) { c.device_type_for_comm(); },
      "mgfl: a communicator's device_type_for_comm() must be const and return a c10::DeviceType, or "
      "nobody would ask it.");
  if constexpr (SaysDeviceTypeForComm<C>)
    return group.device_type_for_comm();
  else
    return otherwise;
}

}  // namespace parallel
}  // namespace mgfl

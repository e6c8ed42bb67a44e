/// The Communicator concept: what every layer may ask of a group of ranks.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

/// avg is the sum, divided once by the number of ranks; of floating-point tensors only.
enum class ReduceOp { sum, max, avg };

namespace parallel {

/// One send or receive of an exchange. Borrows its tensor; `peer` is a rank of the group.
struct Transfer {
  enum class Way { send, receive };
  Way way;
  const Tensor* tensor;
  int peer;

  static Transfer send(const Tensor& tensor, int to) { return {Way::send, &tensor, to}; }
  static Transfer receive(Tensor& tensor, int from) { return {Way::receive, &tensor, from}; }
};

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

/// The same with counts[r] rows of `whole` (along its dimension 0) for rank r: part [counts[rank], ...].
/// Every rank gives the same counts.
template <class C>
concept HasReduceScatterV = requires(C& c, const Tensor& whole, Tensor& part,
                                     std::span<const std::int64_t> counts) {
  c.reduce_scatter_v(whole, part, counts, ReduceOp::sum);
};

/// all_gather of counts[r] rows (along dimension 0) from rank r: gathered [sum of counts, ...]. Every rank
/// gives the same counts. Shards that end where a parameter ends are uneven, such as whole matrices for Muon.
template <class C>
concept HasAllGatherV = requires(C& c, const Tensor& part, Tensor& gathered,
                                 std::span<const std::int64_t> counts) {
  c.all_gather_v(part, gathered, counts);
};

/// `sent` holds one equal part for each rank, `received` one from each, both in rank order. The two must not
/// overlap.
template <class C>
concept HasAllToAll = requires(C& c, const Tensor& sent, Tensor& received) {
  c.all_to_all(sent, received);
};

/// sent [sum of send_counts, ...]: send_counts[r] rows (along dimension 0) for rank r; received likewise with
/// the rows from rank r. What a rank sends to another must be what the other expects.
template <class C>
concept HasAllToAllV = requires(C& c, const Tensor& sent, Tensor& received,
                                std::span<const std::int64_t> counts) {
  c.all_to_all_v(sent, counts, received, counts);
};

/// From one rank to one other, which makes the opposite call with as many elements of the same dtype. A send
/// ends after its receive has begun: nothing is buffered, so that what runs here runs on every backend.
template <class C>
concept HasSendRecv = requires(C& c, const Tensor& sent, Tensor& received) {
  c.send(sent, int{});
  c.recv(received, int{});
};

/// Sends and receives as one call, each of which proceeds without regard to the others, so that no order of
/// theirs can deadlock. The k-th send from a to b belongs to the k-th receive on b from a. A tensor that is
/// received must not overlap another one of the call.
template <class C>
concept HasExchange = requires(C& c, std::span<const Transfer> transfers) {
  c.exchange(transfers);
};

/// A new communicator of the ranks that give the same color >= 0, ordered by key, then by rank; the name
/// appears in messages.
template <class C>
concept HasSplit = requires(C& c) {
  { c.split(int{}, int{}, std::string_view{}) } -> std::same_as<C>;
};

/// An all_reduce beside what its caller does meanwhile: `auto pending = c.start_all_reduce(tensor, op);`
/// then, before anyone reads or writes the tensor, `pending.wait();`. The tensor must live until then;
/// pendings of one group end in the order of their start, which is the same on every rank. A pending that
/// goes out of scope waits. Optional: groups without it lack nothing else.
template <class C>
concept HasAsyncAllReduce = requires(C& c, Tensor& tensor) {
  c.start_all_reduce(tensor, ReduceOp::sum).wait();
};

/// A group of ranks. Every call is blocking, with a deadline, and takes contiguous tensors, which views along
/// dimension 0 are; also empty ones. All but send, recv and exchange are collective. Failure ends the whole
/// job with a message that names the rank and the operation.
template <class C>
concept Communicator = HasPlace<C> && HasAllReduce<C> && HasBroadcast<C> && HasAllGather<C> && HasBarrier<C>;

/// A group that can do all that model parallelism and sharded optimizers ask for.
template <class C>
concept WholeCommunicator =
    Communicator<C> && HasReduceScatter<C> && HasReduceScatterV<C> && HasAllGatherV<C> && HasAllToAll<C> &&
    HasAllToAllV<C> && HasSendRecv<C> && HasExchange<C> && HasAllReduceValue<C> && HasSplit<C>;

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

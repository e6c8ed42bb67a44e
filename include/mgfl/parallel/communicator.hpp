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

/// In place, on contiguous tensors; the shape and dtype are the same on every rank. 16-bit floats are summed in fp32 and
/// rounded once. Every rank gets the same bits.
template <class C>
concept HasAllReduce = requires(C& c, Tensor& tensor) { c.all_reduce(tensor, ReduceOp::sum); };

/// Overwrites `tensor` with the root's on every rank.
template <class C>
concept HasBroadcast = requires(C& c, Tensor& tensor) { c.broadcast(tensor, int{}); };

/// gathered [size, ...shape of part]: the parts in rank order.
template <class C>
concept HasAllGather = requires(C& c, const Tensor& part, Tensor& gathered) { c.all_gather(part, gathered); };

template <class C>
concept HasBarrier = requires(C& c) { c.barrier(); };

/// A group of ranks. Every call is collective and blocking, with a deadline; failure ends the whole job with a message that
/// names the rank and the operation.
template <class C>
concept Communicator = HasPlace<C> && HasAllReduce<C> && HasBroadcast<C> && HasAllGather<C> && HasBarrier<C>;

}  // namespace parallel
}  // namespace mgfl

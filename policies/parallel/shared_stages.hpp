/// Collectives of ranks on one machine, through memory that they share: each rank puts what others need on
/// its stage, all meet, each takes what it needs.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/parallel/communicator.hpp"

namespace mgfl::parallel::detail {

/// The stages of a group's ranks. Every rank makes the same call with sizes that fit those of the others;
/// `meet` returns once all ranks have called it as often, and what they wrote before is then visible. After
/// the last meeting of a call nobody reads a stage, so that another group may use it.
class SharedStages {
 public:
  SharedStages() = default;
  /// `stages[r]` is that of rank r, `bytes` long; 64-byte aligned.
  SharedStages(std::vector<std::byte*> stages, std::int64_t bytes, int rank);

  /// False where there are no stages, or they are too small for this many ranks.
  bool usable() const { return piece_ > 0; }

  /// `all` gets bytes[r] from each rank r, in rank order; the own ones are there already.
  void gather(std::byte* all, std::span<const std::int64_t> bytes, function_ref<void()> meet) const;

  /// out_bytes[r] of `out` go to rank r, in_bytes[r] of `in` come from there; not to this rank itself. `most`
  /// is the largest number of bytes between any two ranks.
  void scatter(const std::byte* out, std::span<const std::int64_t> out_bytes, std::byte* in,
               std::span<const std::int64_t> in_bytes, std::int64_t most, function_ref<void()> meet) const;

  /// `part` gets elements[rank] of the reduction of every rank's `whole`, of which rank r has elements[r].
  void reduce_scatter(const std::byte* whole, std::span<const std::int64_t> elements, std::byte* part,
                      c10::ScalarType dtype, ReduceOp op, function_ref<void()> meet) const;

  void all_reduce(std::byte* data, std::int64_t elements, c10::ScalarType dtype, ReduceOp op,
                  function_ref<void()> meet) const;

 private:
  int size() const { return static_cast<int>(stages_.size()); }
  std::byte* stage(int rank) const { return stages_[static_cast<std::size_t>(rank)]; }
  std::byte* piece(int rank, int place) const { return stage(rank) + piece_ * place; }

  std::vector<std::byte*> stages_;
  std::int64_t bytes_ = 0, piece_ = 0;  // a stage holds one piece for each rank and one for a result
  int rank_ = 0;
};

}  // namespace mgfl::parallel::detail

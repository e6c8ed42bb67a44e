/// Ranks that would run different overrides do not start together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mgfl/override/table.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl::parallel {

namespace detail {

/// [size] int64, zero but for `hash` at `rank`: the sum over the ranks is everybody's.
Tensor own_hash(std::uint64_t hash, int rank, int size);

bool all_equal(const Tensor& hashes);

/// A text as bytes of a fixed length, so that ranks can gather them.
Tensor text_bytes(std::string_view text);
Tensor room_for_texts(int size);

/// The sentence that names, for every build, its ranks.
std::string disagreement(const Tensor& hashes, const Tensor& texts);

[[noreturn]] void throw_user_error(const std::string& text);

}  // namespace detail

/// UserError with one text on every rank, which names the ranks of each build, unless all ranks of `world`
/// have the same overrides: vendor, chain, manifests and files. Collective: one all-reduce where they agree.
/// `hash` and `summary` describe this rank's build.
template <Communicator C>
void check_same_overrides(C& world, std::uint64_t hash = override_hash(),
                          std::string_view summary = override_summary()) {
  Tensor hashes = detail::own_hash(hash, world.rank(), world.size());
  world.all_reduce(hashes, ReduceOp::sum);
  if (detail::all_equal(hashes)) return;
  Tensor texts = detail::room_for_texts(world.size());
  world.all_gather(detail::text_bytes(summary), texts);
  detail::throw_user_error(detail::disagreement(hashes, texts));
}

}  // namespace mgfl::parallel

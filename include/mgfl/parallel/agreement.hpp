/// Ranks that would run different overrides do not start together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mgfl/base/error.hpp"
#include "mgfl/base/hash.hpp"
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

std::string hexadecimal(std::uint64_t number);

/// One line for each text that ranks have, naming these ranks.
std::string ranks_of_texts(const Tensor& hashes, const Tensor& texts);

[[noreturn]] void throw_different_overrides(const std::string& ranks);
[[noreturn]] void throw_different_kernels(const std::string& ranks);
[[noreturn]] void throw_different_replicas(const std::string& ranks);
[[noreturn]] void throw_different_batches(const std::string& ranks);

/// Empty where all ranks have one hash; otherwise a line for each text, on every rank. Collective.
template <Communicator C>
std::string disagreement(C& world, std::uint64_t hash, std::string_view text) {
  Tensor hashes = own_hash(hash, world.rank(), world.size());
  world.all_reduce(hashes, ReduceOp::sum);
  if (all_equal(hashes)) return {};
  Tensor texts = room_for_texts(world.size());
  world.all_gather(text_bytes(text), texts);
  return ranks_of_texts(hashes, texts);
}

}  // namespace detail

/// UserError with one text on every rank, which names the ranks of each build, unless all ranks of `world`
/// have the same overrides: vendor, chain, manifests and files. Collective: one all-reduce where they agree.
/// `hash` and `summary` describe this rank's build.
template <Communicator C>
void check_same_overrides(C& world, std::uint64_t hash = override_hash(),
                          std::string_view summary = override_summary()) {
  const std::string ranks =
      detail::disagreement(world, hash, concat(summary, ", files ", detail::hexadecimal(hash)));
  if (!ranks.empty()) detail::throw_different_overrides(ranks);
}

/// UserError with one text on every rank unless all ranks of `world` say the same of their machine's kernels
/// (`note`, empty where nothing is lacking): replicas that compute with unlike kernels drift apart.
/// Collective.
template <Communicator C>
void check_same_kernels(C& world, std::string_view note) {
  const std::string ranks =
      detail::disagreement(world, fnv1a(note), note.empty() ? "nothing is lacking" : note);
  if (!ranks.empty()) detail::throw_different_kernels(ranks);
}

/// UserError with one text on every rank unless all ranks of `group` say the same of what replicas must share
/// (`text`). Collective: one all-reduce where they agree.
template <Communicator C>
void check_same_replicas(C& group, std::string_view text) {
  if (group.size() == 1) return;
  const std::string ranks = detail::disagreement(group, fnv1a(text), text);
  if (!ranks.empty()) detail::throw_different_replicas(ranks);
}

/// The same of ranks that share the layers, and must work on one batch.
template <Communicator C>
void check_same_batch(C& group, std::string_view text) {
  if (group.size() == 1) return;
  const std::string ranks = detail::disagreement(group, fnv1a(text), text);
  if (!ranks.empty()) detail::throw_different_batches(ranks);
}

}  // namespace mgfl::parallel

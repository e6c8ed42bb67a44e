/// What all ranks of a job must have alike is compared before they work together: overrides, kernels, flags,
/// settings, weights, batches.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mgfl/base/error.hpp"
#include "mgfl/override/table.hpp"
#include "mgfl/parallel/communicator.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl::parallel {

namespace detail {

/// [size, 2] int64, zero but for the hash and the length of `text` at `rank`: the sum over the ranks is
/// everybody's.
Tensor own_digest(std::string_view text, int rank, int size);

bool all_equal(const Tensor& digests);
std::int64_t longest(const Tensor& digests);

/// A text as `length` bytes, so that ranks can gather them.
Tensor text_bytes(std::string_view text, std::int64_t length);

std::string hexadecimal(std::uint64_t number);

/// One line for each text that ranks have, naming these ranks; of texts of several lines only the lines that
/// not all texts have. `texts` is [size, longest].
std::string ranks_of_texts(const Tensor& digests, const Tensor& texts);

}  // namespace detail

// The errors of ranks that are not alike: each throws a UserError with `ranks`, from detail::ranks_of_texts.
[[noreturn]] void throw_different_overrides(const std::string& ranks);
[[noreturn]] void throw_different_kernels(const std::string& ranks);
[[noreturn]] void throw_different_flags(const std::string& ranks);
[[noreturn]] void throw_different_replicas(const std::string& ranks);
[[noreturn]] void throw_different_batches(const std::string& ranks);

/// Calls `complain`, on every rank with one text, unless all ranks of `group` give one `text`. Collective:
/// one all-reduce where they agree.
template <Communicator C>
void check_same(C& group, std::string_view text, void (*complain)(const std::string& ranks)) {
  if (group.size() == 1) return;
  Tensor digests = detail::own_digest(text, group.rank(), group.size());
  group.all_reduce(digests, ReduceOp::sum);
  if (detail::all_equal(digests)) return;
  const auto length = detail::longest(digests);
  Tensor texts = zeros({group.size(), length}, at::kByte);
  group.all_gather(detail::text_bytes(text, length), texts);
  complain(detail::ranks_of_texts(digests, texts));
}

/// UserError with one text on every rank, which names the ranks of each build, unless all ranks of `world`
/// have the same overrides: vendor, chain, manifests and files. `hash` and `summary` describe this rank's
/// build. Collective.
template <Communicator C>
void check_same_overrides(C& world, std::uint64_t hash = override_hash(),
                          std::string_view summary = override_summary()) {
  check_same(world, concat(summary, ", files ", detail::hexadecimal(hash)), throw_different_overrides);
}

/// The same of what their machine's kernels lack (`note`, empty where it is nothing): replicas that compute
/// with unlike kernels drift apart.
template <Communicator C>
void check_same_kernels(C& world, std::string_view note) {
  check_same(world, note.empty() ? "nothing is lacking" : note, throw_different_kernels);
}

}  // namespace mgfl::parallel

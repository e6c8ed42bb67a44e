#include "mgfl/parallel/agreement.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::parallel::detail {

namespace {
constexpr std::int64_t text_length = 2048;
}

Tensor own_hash(std::uint64_t hash, int rank, int size) {
  Tensor hashes = zeros({size}, at::kLong);
  hashes.mutable_data_ptr<std::int64_t>()[rank] = static_cast<std::int64_t>(hash);
  return hashes;
}

bool all_equal(const Tensor& hashes) {
  const auto* values = hashes.const_data_ptr<std::int64_t>();
  return std::all_of(values, values + hashes.numel(), [&](std::int64_t value) { return value == *values; });
}

Tensor text_bytes(std::string_view text) {
  Tensor bytes = zeros({text_length}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<std::uint8_t>(), text.data(),
              std::min(text.size(), static_cast<std::size_t>(text_length)));
  return bytes;
}

Tensor room_for_texts(int size) { return zeros({size, text_length}, at::kByte); }

std::string hexadecimal(std::uint64_t number) { return concat(std::hex, number); }

std::string ranks_of_texts(const Tensor& hashes, const Tensor& texts) {
  const auto* values = hashes.const_data_ptr<std::int64_t>();
  const auto* bytes = reinterpret_cast<const char*>(texts.const_data_ptr<std::uint8_t>());
  std::vector<std::pair<std::int64_t, std::vector<int>>> kinds;  // in the order of their first ranks
  for (int rank = 0; rank < hashes.numel(); ++rank) {
    auto kind = std::ranges::find(kinds, values[rank], &decltype(kinds)::value_type::first);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {values[rank], {}});
    kind->second.push_back(rank);
  }
  std::string lines;
  for (const auto& [hash, ranks] : kinds) {
    const char* text = bytes + ranks.front() * text_length;
    lines += concat("\n  rank", ranks.size() > 1 ? "s " : " ", some_of(ranks, 16), ": ",
                    std::string_view(text, strnlen(text, text_length)));
  }
  return lines;
}

void throw_different_overrides(const std::string& ranks) {
  throw UserError(concat(
      "the ranks of this job were built with different overrides:", ranks,
      "\n  Start every rank from one build; `mgfl overrides` of each program prints what it overrides."));
}

void throw_different_kernels(const std::string& ranks) {
  throw UserError(concat(
      "the ranks of this job would compute with different kernels, and their replicas drift apart:", ranks,
      "\n  Build for what all machines have, or run on machines of one kind."));
}

void throw_different_replicas(const std::string& ranks) {
  throw UserError(concat("ranks must start from the same weights and settings, and do not:", ranks,
                         "\n  Give every rank the same model, seed and settings."));
}

void throw_different_batches(const std::string& ranks) {
  throw UserError(
      concat("ranks of one tensor-parallel group must be given the same batch, and were not:", ranks,
             "\n  Choose data by get_data_parallel_rank(), not by the rank in the world."));
}

}  // namespace mgfl::parallel::detail

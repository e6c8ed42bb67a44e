#include "mgfl/parallel/agreement.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/base/hash.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::parallel {

namespace detail {

namespace {

struct Digest {
  std::int64_t hash, length;

  bool operator==(const Digest&) const = default;
};

/// [size] of the digests in a tensor.
std::span<const Digest> as_digests(const Tensor& tensor) {
  return {reinterpret_cast<const Digest*>(tensor.const_data_ptr<std::int64_t>()),
          static_cast<std::size_t>(tensor.size(0))};
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// Ranks that have one text.
struct Kind {
  Digest digest;
  std::vector<int> ranks;
  std::vector<std::string_view> lines;
};

}  // namespace

Tensor own_digest(std::string_view text, int rank, int size) {
  Tensor digests = zeros({size, 2}, at::kLong);
  auto* own = digests.mutable_data_ptr<std::int64_t>() + 2 * rank;
  own[0] = static_cast<std::int64_t>(fnv1a(text));
  own[1] = static_cast<std::int64_t>(text.size());
  return digests;
}

bool all_equal(const Tensor& digests) {
  const auto all = as_digests(digests);
  return std::ranges::all_of(all, [&](const Digest& digest) { return digest == all.front(); });
}

std::int64_t longest(const Tensor& digests) {
  return std::ranges::max(as_digests(digests), {}, &Digest::length).length;
}

Tensor text_bytes(std::string_view text, std::int64_t length) {
  Tensor bytes = zeros({length}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<std::uint8_t>(), text.data(), text.size());
  return bytes;
}

std::string hexadecimal(std::uint64_t number) { return concat(std::hex, number); }

std::string ranks_of_texts(const Tensor& digests, const Tensor& texts) {
  const auto all = as_digests(digests);
  const auto* bytes = reinterpret_cast<const char*>(texts.const_data_ptr<std::uint8_t>());
  std::vector<Kind> kinds;                         // in the order of their first ranks
  std::map<std::string_view, std::size_t> having;  // kinds that have the line
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto kind = std::ranges::find(kinds, all[rank], &Kind::digest);
    if (kind == kinds.end()) {
      const std::string_view text(bytes + static_cast<std::int64_t>(rank) * texts.size(1),
                                  static_cast<std::size_t>(all[rank].length));
      kind = kinds.insert(kinds.end(), {all[rank], {}, lines_of(text)});
      for (const auto& line : std::set(kind->lines.begin(), kind->lines.end())) ++having[line];
    }
    kind->ranks.push_back(static_cast<int>(rank));
  }
  std::string text;
  for (const auto& [digest, ranks, lines] : kinds) {
    text += concat("\n  rank", ranks.size() > 1 ? "s " : " ", some_of(ranks, 16), ":");
    const char* before = " ";
    for (const auto& line : lines)
      if (having[line] < kinds.size()) text += concat(std::exchange(before, "; "), line);
  }
  return text;
}

}  // namespace detail

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

void throw_different_flags(const std::string& ranks) {
  throw UserError(concat("the ranks were started with different commands or flags:", ranks,
                         "\n  Give every rank the same command line."));
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

}  // namespace mgfl::parallel

#include "mgfl/parallel/agreement.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::parallel::detail {

namespace {
constexpr std::int64_t text_length = 256;
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

std::string disagreement(const Tensor& hashes, const Tensor& texts) {
  const auto* values = hashes.const_data_ptr<std::int64_t>();
  const auto* bytes = reinterpret_cast<const char*>(texts.const_data_ptr<std::uint8_t>());
  std::vector<std::pair<std::int64_t, std::vector<int>>> builds;  // in the order of their first ranks
  for (int rank = 0; rank < hashes.numel(); ++rank) {
    auto build = std::ranges::find(builds, values[rank], &decltype(builds)::value_type::first);
    if (build == builds.end()) build = builds.insert(builds.end(), {values[rank], {}});
    build->second.push_back(rank);
  }
  std::string text = "the ranks of this job were built with different overrides:";
  for (const auto& [hash, ranks] : builds) {
    const char* summary = bytes + ranks.front() * text_length;
    text += concat("\n  rank", ranks.size() > 1 ? "s " : " ", some_of(ranks, 16), ": ",
                   std::string_view(summary, strnlen(summary, text_length)), ", files ", std::hex,
                   static_cast<std::uint64_t>(hash));
  }
  return text +
         "\n  Start every rank from one build; `mgfl overrides` of each program prints what it overrides.";
}

void throw_user_error(const std::string& text) { throw UserError(text); }

}  // namespace mgfl::parallel::detail

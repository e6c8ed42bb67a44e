#include "policies/parallel/shared_stages.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "policies/parallel/collective.hpp"

namespace mgfl::parallel::detail {

namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// What the round that begins at `begin` moves of `whole`.
std::int64_t of_round(std::int64_t whole, std::int64_t begin, std::int64_t most) {
  return std::clamp<std::int64_t>(whole - begin, 0, most);
}

std::vector<std::int64_t> offsets_of(std::span<const std::int64_t> lengths) {
  std::vector<std::int64_t> offsets(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), std::int64_t{0});
  return offsets;
}

}  // namespace

SharedStages::SharedStages(std::vector<std::byte*> stages, std::int64_t bytes, int rank)
    : stages_(std::move(stages)), bytes_(bytes / 64 * 64), rank_(rank) {
  piece_ = bytes_ / (size() + 1) / 64 * 64;
}

void SharedStages::gather(std::byte* all, std::span<const std::int64_t> bytes,
                          function_ref<void()> meet) const {
  const std::vector<std::int64_t> offsets = offsets_of(bytes);
  const std::int64_t most = *std::max_element(bytes.begin(), bytes.end()), half = bytes_ / 128 * 64;
  const auto place = [&](int r, std::int64_t begin) {
    return all + offsets[static_cast<std::size_t>(r)] + begin;
  };
  const auto length = [&](int r, std::int64_t begin) {
    return of_round(bytes[static_cast<std::size_t>(r)], begin, half);
  };
  const auto side = [&](int r, std::int64_t begin) { return stage(r) + begin / half % 2 * half; };
  const auto put = [&](std::int64_t begin) {
    copy_bytes(side(rank_, begin), place(rank_, begin), length(rank_, begin));
  };
  if (most == 0) return;
  put(0);
  meet();
  for (std::int64_t begin = 0; begin < most; begin += half) {
    // One half of the stages is filled while the other is read, so that a root need not wait for its readers.
    if (begin + half < most) put(begin + half);
    for (int r = 0; r < size(); ++r)
      if (r != rank_) copy_bytes(place(r, begin), side(r, begin), length(r, begin));
    meet();
  }
}

void SharedStages::scatter(const std::byte* out, std::span<const std::int64_t> out_bytes, std::byte* in,
                           std::span<const std::int64_t> in_bytes, std::int64_t most,
                           function_ref<void()> meet) const {
  const std::vector<std::int64_t> out_offsets = offsets_of(out_bytes), in_offsets = offsets_of(in_bytes);
  for (std::int64_t begin = 0; begin < most; begin += piece_) {
    for (int r = 0; r < size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r != rank_)
        copy_bytes(piece(rank_, r), out + out_offsets[i] + begin, of_round(out_bytes[i], begin, piece_));
    }
    meet();
    for (int r = 0; r < size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r != rank_)
        copy_bytes(in + in_offsets[i] + begin, piece(r, rank_), of_round(in_bytes[i], begin, piece_));
    }
    meet();
  }
}

void SharedStages::reduce_scatter(const std::byte* whole, std::span<const std::int64_t> elements,
                                  std::byte* part, c10::ScalarType dtype, ReduceOp op,
                                  function_ref<void()> meet) const {
  const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t segment = piece_ / width, most = *std::max_element(elements.begin(), elements.end());
  const std::vector<std::int64_t> offsets = offsets_of(elements);
  std::vector<const std::byte*> parts(stages_.size());
  for (std::int64_t begin = 0; begin < most; begin += segment) {
    const auto place = [&](int r) { return whole + (offsets[static_cast<std::size_t>(r)] + begin) * width; };
    const auto length = [&](int r) {
      return of_round(elements[static_cast<std::size_t>(r)], begin, segment);
    };
    for (int r = 0; r < size(); ++r)
      if (r != rank_) copy_bytes(piece(rank_, r), place(r), length(r) * width);
    meet();
    for (int r = 0; r < size(); ++r)
      parts[static_cast<std::size_t>(r)] = r == rank_ ? place(r) : piece(r, rank_);
    reduce_in_order(dtype, op, parts.data(), size(), length(rank_), part + begin * width);
    meet();
  }
}

void SharedStages::all_reduce(std::byte* data, std::int64_t elements, c10::ScalarType dtype, ReduceOp op,
                              function_ref<void()> meet) const {
  const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t segment = piece_ / width;
  const int result = size();
  std::vector<const std::byte*> parts(stages_.size());
  const auto put = [&](const Slab& slab) {
    for (int r = 0; r < size(); ++r)
      if (r != rank_) copy_bytes(piece(rank_, r), data + slab.first(r) * width, slab.length(r) * width);
  };
  Slab slab = slab_at(0, elements, segment, size());
  put(slab);
  meet();
  while (slab.begin < elements) {
    std::byte* own = data + slab.first(rank_) * width;
    for (int r = 0; r < size(); ++r) parts[static_cast<std::size_t>(r)] = r == rank_ ? own : piece(r, rank_);
    reduce_in_order(dtype, op, parts.data(), size(), slab.length(rank_), own);
    copy_bytes(piece(rank_, result), own, slab.length(rank_) * width);
    meet();
    for (int r = 0; r < size(); ++r)
      if (r != rank_) copy_bytes(data + slab.first(r) * width, piece(r, result), slab.length(r) * width);
    // The pieces for the next slab have been read, the results of this one lie beside them.
    slab = slab_at(slab.end, elements, segment, size());
    if (slab.begin < elements) put(slab);
    meet();
  }
}

}  // namespace mgfl::parallel::detail

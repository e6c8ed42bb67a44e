#include "mgfl/parallel/placement.hpp"

#include <algorithm>

#include "mgfl/base/error.hpp"

namespace mgfl::parallel {

namespace {

void check_divides(const ParamDesc& desc, std::int64_t parts, std::int64_t size, const char* what) {
  check_run(parts % size == 0, "parameter ", desc.name, ": ", what, " ", parts,
            " cannot be split over tensor-model-parallel-size ", size, ".");
}

/// Whole kv groups, or with more ranks than groups a share of one group's queries and its key and value.
std::vector<Piece> qkv_pieces(const ParamDesc& desc, int rank) {
  const auto& rows = desc.qkv;
  const std::int64_t size = desc.tp.size;
  const auto group_rows = (rows.queries_per_group + 2) * rows.head_dim;
  if (size <= rows.groups) {
    check_divides(desc, rows.groups, size, "kv groups");
    const auto groups = rows.groups / size;
    return {{rank * groups * group_rows, 0, groups * group_rows}};
  }
  check_run(size % rows.groups == 0, "parameter ", desc.name, ": tensor-model-parallel-size ", size,
            " is no multiple of ", rows.groups, " kv groups.");
  const auto sharing = size / rows.groups;  // ranks of one group
  check_divides(desc, rows.queries_per_group, sharing, "queries of a kv group");
  const auto queries = rows.queries_per_group / sharing * rows.head_dim;
  const auto first = rank / sharing * group_rows;
  return {{first + rank % sharing * queries, 0, queries},
          {first + rows.queries_per_group * rows.head_dim, queries, 2 * rows.head_dim,
           static_cast<int>(sharing)}};
}

}  // namespace

int split_dimension(const ParamDesc& desc) { return desc.placement == PlacementKind::row ? 1 : 0; }

std::vector<Piece> pieces(const ParamDesc& desc, int rank) {
  const auto all = desc.shape[static_cast<std::size_t>(split_dimension(desc))];
  const std::int64_t size = desc.tp.size;
  if (is_whole(desc)) return {{0, 0, all, desc.tp.size}};
  switch (desc.placement) {
    case PlacementKind::qkv:
      return qkv_pieces(desc, rank);
    case PlacementKind::gate_up: {
      check_divides(desc, all / 2, size, "ffn_hidden_size");
      const auto half = all / 2 / size;
      return {{rank * half, 0, half}, {all / 2 + rank * half, half, half}};
    }
    default:
      check_divides(desc, all, size, "size");
      return {{rank * (all / size), 0, all / size}};
  }
}

std::vector<std::int64_t> local_shape(const ParamDesc& desc) {
  auto shape = desc.shape;
  if (is_whole(desc)) return shape;
  const auto held = pieces(desc);
  shape[static_cast<std::size_t>(split_dimension(desc))] = held.back().local + held.back().length;
  return shape;
}

std::int64_t local_numel(const ParamDesc& desc) {
  std::int64_t numel = 1;
  for (const auto extent : local_shape(desc)) numel *= extent;
  return numel;
}

std::int64_t counted_numel(const ParamDesc& desc) {
  const auto real_rows = desc.shape[static_cast<std::size_t>(split_dimension(desc))] - desc.padding;
  // What is not counted comes last: pieces with copies, whose ranks are neighbours and the first of them
  // counts, and padding.
  std::int64_t rows = 0, held = 0;
  for (const auto& piece : pieces(desc)) {
    held += piece.length;
    if (desc.tp.rank % piece.copies == 0)
      rows += std::clamp<std::int64_t>(real_rows - piece.logical, 0, piece.length);
  }
  return rows == held ? local_numel(desc) : local_numel(desc) / held * rows;
}

void put_rows(const ParamDesc& desc, int rank, std::int64_t begin, const Tensor& rows, Tensor& logical) {
  const auto count = rows.size(0);
  for (const auto& piece : pieces(desc, rank)) {
    if (split_dimension(desc) == 1) {
      logical.narrow(0, begin, count)
          .narrow(1, piece.logical, piece.length)
          .copy_(rows.narrow(1, piece.local, piece.length));
      continue;
    }
    const auto first = std::max(begin, piece.local);
    const auto last = std::min(begin + count, piece.local + piece.length);
    if (first < last)
      logical.narrow(0, piece.logical + first - piece.local, last - first)
          .copy_(rows.narrow(0, first - begin, last - first));
  }
}

}  // namespace mgfl::parallel

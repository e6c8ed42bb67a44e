/// From a parameter's placement to what lies on a rank: local shapes, slices, and which elements count once.
#pragma once

#include <cstdint>
#include <vector>

#include "mgfl/parallel/param.hpp"

namespace mgfl::parallel {

/// Neighbouring rows (columns, for placement Row) of a logical parameter that lie together on a rank.
struct Piece {
  std::int64_t logical = 0, local = 0, length = 0;  // first row there, first row here, number of rows
  int copies = 1;                                   // tp ranks that hold these rows
};

/// The dimension along which a placement cuts a parameter: 1 for Row, else 0.
int split_dimension(const ParamDesc& desc);

/// What tp rank `rank` of desc.tp.size holds, in the order of its local rows, which it fills without gaps.
/// RunError naming parameter and numbers where the placement does not divide it; users' sizes are checked
/// before, see layout.hpp.
std::vector<Piece> pieces(const ParamDesc& desc, int rank);

/// The same of this rank.
inline std::vector<Piece> pieces(const ParamDesc& desc) { return pieces(desc, desc.tp.rank); }

/// Shape of this rank's part.
std::vector<std::int64_t> local_shape(const ParamDesc& desc);
std::int64_t local_numel(const ParamDesc& desc);

/// Whether each rank holds all of it.
inline bool is_whole(const ParamDesc& desc) {
  return desc.tp.size == 1 || desc.placement == PlacementKind::replicated;
}

/// The first so many of this rank's elements are counted here, the others by another tp rank that holds them
/// too: statistics over all ranks then meet every logical element once.
std::int64_t counted_numel(const ParamDesc& desc);

/// Puts rows [begin, begin + rows.size(0)) of tp rank `rank`'s part where they belong in `logical`.
void put_rows(const ParamDesc& desc, int rank, std::int64_t begin, const Tensor& rows, Tensor& logical);

}  // namespace mgfl::parallel

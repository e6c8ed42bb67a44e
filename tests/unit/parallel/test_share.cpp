// What each rank takes of a list.
#include "mgfl/parallel/share.hpp"
#include "tests/support/doctest.hpp"

namespace {

struct Place {
  int of_rank, of_size;
  int rank() const { return of_rank; }
  int size() const { return of_size; }
};

}  // namespace

TEST_CASE("shares are contiguous, and the first ones larger") {
  using mgfl::parallel::share_of;
  using Share = std::pair<std::int64_t, std::int64_t>;
  CHECK(share_of(7, Place{0, 3}) == Share{0, 3});
  CHECK(share_of(7, Place{1, 3}) == Share{3, 5});
  CHECK(share_of(7, Place{2, 3}) == Share{5, 7});
  CHECK(share_of(1, Place{1, 2}) == Share{1, 1});
}

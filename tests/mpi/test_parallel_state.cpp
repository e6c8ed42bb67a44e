// Which ranks are together in the groups of tensor x data parallelism.
#include "tests/support/mpi.hpp"

#include "tests/support/doctest.hpp"

#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/mpi.hpp"

using namespace mgfl;
using parallel::Mpi;

namespace {

/// The world ranks of a group's members, in the group's order.
std::vector<std::int64_t> members(Mpi& group, int world_rank) {
  Tensor own = empty({1}, at::kLong), all = empty({group.size()}, at::kLong);
  own.fill_(world_rank);
  group.all_gather(own, all);
  const auto* first = all.const_data_ptr<std::int64_t>();
  return {first, first + group.size()};
}

void check_layout(int tp, int dp) {
  CAPTURE(tp);
  const int rank = Mpi(mgfl_test::session()).rank();
  auto state =
      parallel::initialize_model_parallel(Mpi(mgfl_test::session()), {.tensor_model_parallel_size = tp});
  const auto context = state.context();
  CHECK(context.extents.tp == tp);
  CHECK(context.extents.etp == tp);
  CHECK(context.extents.dp == dp);
  CHECK(context.place.tp == rank % tp);
  CHECK(context.place.dp == rank / tp);
  std::vector<std::int64_t> neighbours, replicas, world;  // of tp = 2, dp = 4 and rank 5: 4 5, and 1 3 5 7
  for (int t = 0; t < tp; ++t) neighbours.push_back(rank / tp * tp + t);
  for (int d = 0; d < dp; ++d) replicas.push_back(rank % tp + tp * d);
  for (int r = 0; r < tp * dp; ++r) world.push_back(r);
  CHECK(members(*context.tensor_parallel, rank) == neighbours);
  CHECK(members(*context.model_parallel, rank) == neighbours);
  CHECK(members(*context.data_parallel, rank) == replicas);
  CHECK(members(*context.world, rank) == world);
  CHECK(context.tensor_parallel->rank() == context.place.tp);
  CHECK(context.data_parallel->rank() == context.place.dp);
}

}  // namespace

TEST_CASE("every tensor x data layout of this world") {
  const int size = Mpi(mgfl_test::session()).size();
  for (int tp = 1; tp <= size; ++tp)
    if (size % tp == 0) check_layout(tp, size / tp);
}

TEST_CASE("the order of axes is free") {
  Mpi world(mgfl_test::session());
  const int rank = world.rank(), dp = world.size() / 2;
  auto state = parallel::initialize_model_parallel(Mpi(mgfl_test::session()),
                                                   {.tensor_model_parallel_size = 2, .order = "dp-tp"});
  const auto context = state.context();
  CHECK(context.place.dp == rank % dp);
  CHECK(context.place.tp == rank / dp);
  CHECK(members(*context.tensor_parallel, rank) == std::vector<std::int64_t>{rank % dp, rank % dp + dp});
}

TEST_CASE("a layout that does not divide the world is refused on all ranks, and the world goes on") {
  Mpi world(mgfl_test::session());
  const int tp = world.size() + 1;
  CHECK_THROWS_WITH_AS(
      parallel::initialize_model_parallel(Mpi(mgfl_test::session()), {.tensor_model_parallel_size = tp}),
      doctest::Contains(
          concat("world size ", world.size(), " is not divisible by tensor-model-parallel-size ", tp)
              .c_str()),
      UserError);
  CHECK(world.all_reduce_value(std::int64_t{1}, ReduceOp::sum) == world.size());
}

TEST_CASE("groups go by their names in messages") {
  auto state = parallel::initialize_model_parallel(Mpi(mgfl_test::session()));
  const auto context = state.context();
  Tensor tensor = zeros({1}, at::kFloat);
  const auto misuse = [&](Mpi& group) { group.broadcast(tensor, 99); };
  CHECK_THROWS_WITH_AS(misuse(*context.tensor_parallel), doctest::Contains("'tensor parallel'"), RunError);
  CHECK_THROWS_WITH_AS(misuse(*context.data_parallel), doctest::Contains("'data parallel'"), RunError);
  CHECK_THROWS_WITH_AS(misuse(*context.model_parallel), doctest::Contains("'model parallel'"), RunError);
}

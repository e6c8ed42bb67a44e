// Seeds of random streams against numbers computed by hand, and LibTorch's generator against PyTorch's
// numbers.
#include <limits>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "mgfl/base/random.hpp"
#include "policies/training/random_seed.hpp"
#include "tests/support/doctest.hpp"

using namespace mgfl;
using training::SeedBase;
using training::set_random_seed;
using training::stream_seeds;

namespace {

void check_seeds(const training::StreamSeeds& seeds, std::uint64_t base, std::uint64_t model,
                 std::uint64_t expert) {
  CHECK(seeds.default_rng == base);
  CHECK(seeds.model_parallel_rng == model);
  CHECK(seeds.expert_parallel_rng == expert);
}

}  // namespace

TEST_CASE("the first rank") {
  check_seeds(stream_seeds(42, {}), 42, 2760, 1066);
  check_seeds(stream_seeds(1234, {}, SeedBase::training), 1234, 3952, 2258);
  check_seeds(stream_seeds(0, {}), 0, 2718, 1024);
}

TEST_CASE("a rank in the midst of all") {
  const training::SeedRanks ranks{.tp = 1, .pp = 2, .dp = 3, .ep = 5, .etp = 4};
  check_seeds(stream_seeds(42, ranks), 42, 2761, 1570);                       // no term of pp or dp
  check_seeds(stream_seeds(42, ranks, SeedBase::training), 242, 2961, 1770);  // + 200
  check_seeds(stream_seeds(42, ranks, SeedBase::training_random_init), 272, 2991, 1800);  // + 200 + 30
}

TEST_CASE("each rank counts once") {
  check_seeds(stream_seeds(7, {.tp = 3}), 7, 2728, 1031);
  check_seeds(stream_seeds(7, {.pp = 3}, SeedBase::training), 307, 3025, 1331);
  check_seeds(stream_seeds(7, {.dp = 3}, SeedBase::training), 7, 2725, 1031);
  check_seeds(stream_seeds(7, {.dp = 3}, SeedBase::training_random_init), 37, 2755, 1061);
  check_seeds(stream_seeds(7, {.ep = 3}), 7, 2725, 1331);
  check_seeds(stream_seeds(7, {.etp = 3}), 7, 2725, 1034);
}

TEST_CASE("seeds wrap, and negative ranks are refused") {
  check_seeds(stream_seeds(std::numeric_limits<std::uint64_t>::max(), {.tp = 1}), 18446744073709551615u, 2718,
              1023);
  CHECK_THROWS_WITH_AS(set_random_seed(1, {.pp = -1}),
                       "random seeds: a rank of -1 (tp 0, pp -1, dp 0, ep 0, etp 0); ranks count from 0.",
                       UserError);
}

TEST_CASE("LibTorch's generator starts at the base, and mgfl's own streams do not move") {
  const double drawn = normal(1, 2, 3);
  const auto draw = [] { return zeros({4}, at::kFloat).uniform_(0, 1); };
  set_random_seed(42, {.tp = 1, .pp = 2});
  const auto first = draw();
  const double published[] = {0.8823, 0.9150, 0.3829, 0.9593};  // torch.manual_seed(42); torch.rand(4)
  for (int i = 0; i < 4; ++i)
    CHECK(first.data_ptr<float>()[i] == doctest::Approx(published[i]).epsilon(1e-4));
  CHECK_FALSE(draw().equal(first));
  set_random_seed(42, {.tp = 7, .pp = 5, .dp = 1});
  CHECK(draw().equal(first));
  set_random_seed(42, {.pp = 5}, SeedBase::training);
  const auto other = draw();
  CHECK_FALSE(other.equal(first));
  set_random_seed(542, {});
  CHECK(draw().equal(other));
  CHECK(normal(1, 2, 3) == drawn);
}

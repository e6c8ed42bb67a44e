// The tied word embedding's gradient summed over the first and the last pipeline stage, against sums in
// double.
#include "tests/support/fixture.hpp"

#include <string>
#include <vector>

#include "mgfl/base/error.hpp"
#include "policies/distributed/finalize_model_grads.hpp"
#include "policies/engine/megatron_engine.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "vendors/default/distributed/finalize_model_grads.hpp"

using namespace mgfl;
using distributed::EmbeddingGradRows;
using mgfl_test::Mpi;
using mgfl_test::RankGroups;
using parallel::GroupList;

namespace {

constexpr at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};

template <class V>
void reduce(Tensor& grad, const GroupList<Mpi>& groups, const EmbeddingGradRows& rows = {}) {
  implementation<targets::allreduce_embedding_grad, V>::template call<Mpi>(grad, groups, rows);
}

/// Numbers of one holder of the embedding, [rows, 3], in double; those of every dtype are sums of few bits,
/// so that a sum of several in fp32 is exact and 16-bit sums differ from it by one rounding.
Tensor numbers(int holder, std::int64_t rows) {
  Tensor grad = empty({rows, 3}, at::kDouble);
  double* data = grad.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < grad.numel(); ++i)
    data[i] = static_cast<double>((i * 37 + holder * 101) % 256) / 64 * (i % 5 == 0 ? -8 : 1);
  return grad;
}

bool equal(const Tensor& found, const Tensor& in_double, at::ScalarType dtype) {
  return found.to(at::kDouble).equal(in_double.to(dtype).to(at::kDouble));
}

}  // namespace

TEST_CASE("no group: nothing happens") {
  const Tensor own = numbers(0, 4);
  Tensor grad = own.clone();
  reduce<vendors::original>(grad, {});
  reduce<vendors::default_>(grad, {});
  reduce<vendors::default_>(grad, {}, {true, 0, 3});
  distributed::_allreduce_embedding_grad(grad, GroupList<Mpi>());
  CHECK(grad.equal(own));
}

TEST_CASE("one group: the sum, in every dtype, of original and default") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  Tensor sum = zeros({10, 3}, at::kDouble);
  for (int rank = 0; rank < world.size(); ++rank) sum.add_(numbers(rank, 10));
  for (const auto dtype : dtypes) {
    CAPTURE(std::string(c10::toString(dtype)));
    Tensor by_original = numbers(world.rank(), 10).to(dtype), by_default = by_original.clone(),
           by_name = by_original.clone();
    reduce<vendors::original>(by_original, world);
    reduce<vendors::default_>(by_default, world);
    distributed::_allreduce_embedding_grad(by_name, world);
    CHECK(equal(by_original, sum, dtype));
    CHECK(equal(by_default, sum, dtype));
    CHECK(equal(by_name, sum, dtype));
  }
}

TEST_CASE("16-bit gradients are summed in fp32 and rounded once") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  if (world.size() != 4) return;
  // 256 + 1 + 1 + 1 = 259 rounds to 260 in bf16, where steps of bf16 would stay at 256.
  Tensor grad = zeros({2, 2}, at::kBFloat16).fill_(world.rank() == 0 ? 256.0 : 1.0);
  reduce<vendors::default_>(grad, world);
  CHECK(grad.to(at::kDouble).eq(260.0).all().item<bool>());
}

TEST_CASE("one group of two stages, data-parallel ranks with their own rows") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  if (world.size() != 4) return;
  // Stage 0 on ranks 0 and 1, stage 1 on ranks 2 and 3; data parallelism of 2 within a stage.
  Mpi* embedding = ranks.add({{0, 2}, {1, 3}});
  const int stage = world.rank() / 2, dp_rank = world.rank() % 2;
  const Tensor own = numbers(stage, 8), sum = numbers(0, 8).add(numbers(1, 8));
  for (const auto dtype : dtypes) {
    CAPTURE(std::string(c10::toString(dtype)));
    Tensor grad = own.clone().to(dtype);
    reduce<vendors::default_>(grad, *embedding, {true, dp_rank, 2});
    CHECK(equal(grad.narrow(0, 4 * dp_rank, 4), sum.narrow(0, 4 * dp_rank, 4), dtype));
    CHECK(equal(grad.narrow(0, 4 - 4 * dp_rank, 4), own.narrow(0, 4 - 4 * dp_rank, 4), dtype));
    grad = own.clone().to(dtype);
    reduce<vendors::default_>(grad, *embedding, {false, dp_rank, 2});
    CHECK(equal(grad, sum, dtype));
    grad = own.clone().to(dtype);
    reduce<vendors::original>(grad, *embedding, {true, dp_rank, 2});  // all rows, the rank's own among them
    CHECK(equal(grad, sum, dtype));
  }
}

TEST_CASE("meshes of unlike data parallelism: a rank with two counterparts lists both groups") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  if (world.size() != 6) return;
  const int rank = world.rank();
  const bool first_stage = rank < 2;
  const auto check = [&](std::initializer_list<std::vector<int>> first,
                         std::initializer_list<std::vector<int>> second, int tp_rank, int dp_rank,
                         int dp_size) {
    std::vector<Mpi*> list;
    for (const auto& sets : {first, second})
      if (Mpi* group = ranks.add(sets)) list.push_back(group);
    REQUIRE(list.size() == (first_stage ? 2 : 1));
    const Tensor own = numbers(2 * tp_rank + (first_stage ? 0 : 1), 8),
                 sum = numbers(2 * tp_rank, 8).add(numbers(2 * tp_rank + 1, 8));
    Tensor partial = own.clone();
    const std::int64_t share = 8 / dp_size;
    partial.narrow(0, share * dp_rank, share).copy_(sum.narrow(0, share * dp_rank, share));
    for (const auto dtype : dtypes) {
      CAPTURE(std::string(c10::toString(dtype)));
      Tensor grad = own.clone().to(dtype);
      reduce<vendors::default_>(grad, list);
      CHECK(equal(grad, sum, dtype));
      grad = own.clone().to(dtype);
      reduce<vendors::default_>(grad, list, {true, dp_rank, dp_size});
      CHECK(equal(grad, partial, dtype));
    }
    Tensor grad = own.clone();
    if (first_stage) CHECK_THROWS_AS(reduce<vendors::original>(grad, list), UserError);
  };
  // First stage: ranks 0 and 1, tp 2. Last stage: ranks 2 to 5, tp 2 x dp 2. Rows differ by tp rank.
  check({{0, 2}, {1, 3}}, {{0, 4}, {1, 5}}, rank % 2, rank < 4 ? 0 : 1, first_stage ? 1 : 2);
  // First stage: ranks 0 and 1, dp 2. Last stage: ranks 2 to 5, dp 4.
  check({{0, 2}, {1, 4}}, {{0, 3}, {1, 5}}, 0, first_stage ? rank : rank - 2, first_stage ? 2 : 4);
}

TEST_CASE("rows that do not divide are refused with the numbers, before any communication") {
  RankGroups ranks;
  Mpi* again = ranks.add({{0, 1, 2, 3, 4, 5}});
  Tensor grad = numbers(0, 10);
  CHECK_THROWS_WITH_AS(
      reduce<vendors::default_>(grad, {&ranks.world, again}, {true, 1, 2}),
      doctest::Contains("10 rows are not divisible by data-parallel size 2 x 2 embedding groups = 4"),
      UserError);
  CHECK_THROWS_WITH_AS(reduce<vendors::default_>(grad, ranks.world, {true, 0, 3}),
                       doctest::Contains("10 rows are not divisible by data-parallel size 3 x 1"), UserError);
  CHECK_THROWS_WITH_AS(reduce<vendors::default_>(grad, ranks.world, {true, 2, 2}),
                       doctest::Contains("data-parallel rank 2 of 2"), UserError);
  ranks.world.barrier();
}

TEST_CASE("a model sums its embedding's gradient where the weight is tied, and only there") {
  RankGroups ranks;
  Mpi& world = ranks.world;
  for (const auto* name : {"llama", "qwen2"}) {  // untied, tied
    CAPTURE(name);
    const test::Fixture fixture(name);
    Mpi* alone = ranks.add({{0}, {1}, {2}, {3}, {4}, {5}});
    LanguageModelEngine<Mpi, optimizer::Fp64> engine({fixture.folder, "", 1}, {}, {},
                                                     test::constant_schedule(0, 0),
                                                     parallel::data_parallel_context(*alone, *alone));
    engine.initialize();
    auto& model = engine.module();
    const bool tied = !model.output_layer;
    CHECK(tied == (fixture.folder.find("qwen2") != std::string::npos));
    engine.optimizer().main_grads().fill_(1.0 + world.rank());
    model.allreduce_embedding_grad(GroupList<Mpi>(world));
    const double sum = world.size() * (world.size() + 1) / 2.0;
    CHECK(model.word_embeddings.main_grad.eq(tied ? sum : 1.0 + world.rank()).all().item<bool>());
    CHECK(model.final_layernorm.main_grad.eq(1.0 + world.rank()).all().item<bool>());
  }
}

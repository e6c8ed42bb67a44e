// Random streams by name: seeds against numbers computed by hand, draws against the counters themselves.
#include "policies/tensor_parallel/random.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/base/random.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "tests/support/doctest.hpp"

using namespace mgfl;
using tensor_parallel::CudaRNGStatesTracker;
using tensor_parallel::model_parallel_cuda_manual_seed;
using tensor_parallel::RngState;
using tensor_parallel::RngStates;
using Numbers = std::vector<double>;

namespace {

const std::vector<std::string> streams{"default", "data-parallel-rng", "model-parallel-rng",
                                       "expert-parallel-rng"};

/// The next numbers of the current stream.
Numbers draw(CudaRNGStatesTracker& tracker, std::int64_t count) {
  auto values = zeros({count}, at::kDouble);
  tracker.uniform_(values);
  return {values.data_ptr<double>(), values.data_ptr<double>() + count};
}

Numbers draw(CudaRNGStatesTracker& tracker, const std::string& name, std::int64_t count) {
  const auto fork = tracker.fork(name);
  return draw(tracker, count);
}

/// Numbers [from, to) of a seed, from its counters.
Numbers counted(std::uint64_t seed, std::uint64_t from, std::uint64_t to) {
  Numbers numbers;
  for (auto i = from; i < to; ++i) numbers.push_back(uniform(seed, stream_of("CudaRNGStatesTracker"), i));
  return numbers;
}

}  // namespace

TEST_CASE("seeds are Megatron's") {
  CudaRNGStatesTracker tracker;
  CHECK_FALSE(tracker.is_initialized());
  model_parallel_cuda_manual_seed(tracker, 42, 1, 5, 4);
  CHECK(tracker.is_initialized());
  CHECK(tracker.get_states() == RngStates{{"default", {42, 0}},
                                          {"data-parallel-rng", {42, 0}},
                                          {"model-parallel-rng", {2761, 0}},
                                          {"expert-parallel-rng", {1570, 0}}});
  draw(tracker, "model-parallel-rng", 3);
  model_parallel_cuda_manual_seed(tracker, 7);
  CHECK(tracker.get_states() == RngStates{{"default", {7, 0}},
                                          {"data-parallel-rng", {7, 0}},
                                          {"model-parallel-rng", {2725, 0}},
                                          {"expert-parallel-rng", {1031, 0}}});
}

TEST_CASE("a stream is its seed's numbers in order, whatever other streams draw") {
  CudaRNGStatesTracker tracker;
  model_parallel_cuda_manual_seed(tracker, 42, 1);
  CHECK(draw(tracker, 3) == counted(42, 0, 3));
  {
    const auto fork = tracker.fork();  // model-parallel-rng
    CHECK(draw(tracker, 4) == counted(2761, 0, 4));
    CHECK(draw(tracker, 1) == counted(2761, 4, 5));
  }
  CHECK(draw(tracker, 2) == counted(42, 3, 5));  // the fork's end restores the stream before
  CHECK(draw(tracker, "data-parallel-rng", 2) == counted(42, 0, 2));
  CHECK(draw(tracker, "model-parallel-rng", 2) == counted(2761, 5, 7));  // and keeps the fork's position
  CHECK(tracker.get_states().at("model-parallel-rng") == RngState{2761, 7});
}

TEST_CASE("forks nest, one of the same stream goes on, and an exception ends them") {
  CudaRNGStatesTracker tracker;
  tracker.add("a", 1);
  tracker.add("b", 2);
  {
    const auto a = tracker.fork("a");
    CHECK(draw(tracker, 1) == counted(1, 0, 1));
    CHECK(draw(tracker, "b", 2) == counted(2, 0, 2));
    CHECK(draw(tracker, "a", 2) == counted(1, 1, 3));
    CHECK(draw(tracker, "default", 1) == counted(0, 0, 1));
    CHECK(draw(tracker, 1) == counted(1, 3, 4));
  }
  try {
    const auto b = tracker.fork("b");
    draw(tracker, 1);
    throw std::runtime_error("inside a fork");
  } catch (const std::runtime_error&) {
  }
  CHECK(draw(tracker, 1) == counted(0, 1, 2));
  CHECK(draw(tracker, "b", 1) == counted(2, 3, 4));
}

TEST_CASE("states that are saved and restored go on bit for bit, on every rank and stream") {
  for (const int tp : {0, 1})
    for (const int ep : {0, 1}) {
      CudaRNGStatesTracker tracker;
      model_parallel_cuda_manual_seed(tracker, 1234, tp, ep);
      for (const auto& name : streams) draw(tracker, name, 3);
      const auto saved = tracker.get_states();
      CudaRNGStatesTracker loaded;
      loaded.set_states(saved);
      CHECK(loaded.is_initialized());
      for (const auto& name : streams) {
        CAPTURE(name);
        CHECK(draw(tracker, name, 2) == draw(loaded, name, 2));
      }
      CHECK(tracker.get_states() == loaded.get_states());
      CHECK(saved.at("default").position == 3);  // a copy
    }
}

TEST_CASE(
    "tensor-parallel ranks agree on the default stream and differ on theirs; experts' go by ep and etp") {
  const auto of = [](const std::string& name, int tp, int ep, int etp) {
    CudaRNGStatesTracker tracker;
    model_parallel_cuda_manual_seed(tracker, 5, tp, ep, etp);
    return draw(tracker, name, 8);
  };
  for (const auto* same : {"default", "data-parallel-rng", "expert-parallel-rng"})
    CHECK(of(same, 0, 0, 0) == of(same, 1, 0, 0));
  std::vector<Numbers> models, experts;
  for (int rank = 0; rank < 8; ++rank) {
    models.push_back(of("model-parallel-rng", rank, 0, 0));
    experts.push_back(of("expert-parallel-rng", 0, rank / 2, rank % 2));
  }
  for (auto* all : {&models, &experts}) {
    std::ranges::sort(*all);
    CHECK(std::ranges::adjacent_find(*all) == all->end());
  }
}

TEST_CASE("uniform_ fills any layout and dtype in row-major order") {
  CudaRNGStatesTracker tracker;
  tracker.manual_seed(9);
  const auto expected = counted(9, 0, 6);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    tracker.manual_seed(9);
    Tensor columns = zeros({3, 2}, dtype).t();  // [2, 3], strided
    tracker.uniform_(columns);
    for (std::int64_t i = 0; i < 6; ++i)
      CHECK(columns[i / 3][i % 3].item<double>() ==
            zeros({}, at::kDouble).add(expected[static_cast<std::size_t>(i)]).to(dtype).item<double>());
  }
  tracker.manual_seed(9);
  Tensor none = zeros({0, 4}, at::kFloat);
  tracker.uniform_(none);
  CHECK(tracker.get_states().at("default") == RngState{9, 0});
  Tensor many = zeros({100000}, at::kDouble);
  tracker.uniform_(many);
  CHECK(many.min().item<double>() > 0);
  CHECK(many.max().item<double>() <= 1);
  CHECK(many.mean().item<double>() == doctest::Approx(0.5).epsilon(0.01));
  CHECK(many.var().item<double>() == doctest::Approx(1.0 / 12).epsilon(0.01));
}

TEST_CASE("a dropout mask keeps 1 - p, scaled so that the mean stays") {
  CudaRNGStatesTracker tracker;
  tracker.add("model-parallel-rng", 3);
  constexpr std::int64_t count = 40000;
  for (const double p : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    CAPTURE(p);
    const auto start = tracker.get_states().at("model-parallel-rng").position;
    const auto fork = tracker.fork();
    Tensor mask = zeros({count / 4, 4}, at::kDouble);
    tracker.dropout_mask_(mask, p);
    CHECK(tracker.get_states().at("model-parallel-rng").position == start + count);
    const auto drawn = counted(3, start, start + count);
    bool as_drawn = true;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool kept = drawn[static_cast<std::size_t>(i)] > p;
      as_drawn = as_drawn && mask.data_ptr<double>()[i] == (kept ? 1 / (1 - p) : 0.0);
    }
    CHECK(as_drawn);
    CHECK(mask.mean().item<double>() == doctest::Approx(p < 1 ? 1 : 0).epsilon(0.03));
  }
  tracker.manual_seed(8);
  Tensor half = zeros({4, 3}, at::kBFloat16).t();
  tracker.dropout_mask_(half, 0.2);
  const auto drawn = counted(8, 0, 12);
  for (std::int64_t i = 0; i < 12; ++i)
    CHECK(half[i / 4][i % 4].item<double>() == (drawn[static_cast<std::size_t>(i)] > 0.2 ? 1.25 : 0.0));
}

TEST_CASE("reset leaves the default stream; a fork whose stream it removed cannot draw") {
  CudaRNGStatesTracker tracker;
  tracker.manual_seed(6);
  tracker.add("a", 1);
  draw(tracker, 2);
  {
    const auto fork = tracker.fork("a");
    tracker.reset();
    CHECK_FALSE(tracker.is_initialized());
    CHECK_THROWS_WITH_AS(draw(tracker, 1),
                         "CudaRNGStatesTracker: cuda rng state \"a\" is not added; there are default. Add it "
                         "first.",
                         UserError);
  }
  CHECK(draw(tracker, 1) == counted(6, 2, 3));
  tracker.add("a", 1);  // name and seed are free again
}

TEST_CASE("what cannot be is refused, and changes nothing") {
  CudaRNGStatesTracker tracker;
  model_parallel_cuda_manual_seed(tracker, 42);
  const auto before = tracker.get_states();
  CHECK_THROWS_WITH_AS(tracker.add("mine", 2760),
                       "CudaRNGStatesTracker: seed 2760 already exists, for \"model-parallel-rng\"; give "
                       "\"mine\" another one, or both would draw the same numbers.",
                       UserError);
  for (const auto& name : streams)
    CHECK_THROWS_WITH_AS(tracker.add(name, 1),
                         concat("CudaRNGStatesTracker: cuda rng state \"", name,
                                "\" already exists; choose another name, or reset() first.")
                             .c_str(),
                         UserError);
  CHECK_THROWS_WITH_AS(draw(tracker, "mine", 1),
                       "CudaRNGStatesTracker: cuda rng state \"mine\" is not added; there are "
                       "data-parallel-rng, default, expert-parallel-rng, model-parallel-rng. Add it first.",
                       UserError);
  CHECK_THROWS_WITH_AS(tracker.set_states({{"a", {1, 0}}}),
                       "CudaRNGStatesTracker: states of a lack \"default\"; give all that get_states() gave.",
                       UserError);
  CHECK_THROWS_WITH_AS(tracker.set_states({}),
                       "CudaRNGStatesTracker: states of nothing lack \"default\"; give all that get_states() "
                       "gave.",
                       UserError);
  Tensor ids = zeros({2}, at::kLong), none, mask = zeros({2}, at::kFloat);
  CHECK_THROWS_WITH_AS(tracker.uniform_(ids),
                       "CudaRNGStatesTracker: uniform_ fills tensors of floating-point numbers, not of Long.",
                       UserError);
  CHECK_THROWS_WITH_AS(
      tracker.dropout_mask_(ids, 0.5),
      "CudaRNGStatesTracker: dropout_mask_ fills tensors of floating-point numbers, not of Long.", UserError);
  CHECK_THROWS_WITH_AS(tracker.uniform_(none),
                       "CudaRNGStatesTracker: uniform_ was given an undefined tensor.", UserError);
  for (const double p : {-0.1, 1.5, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_WITH_AS(
        tracker.dropout_mask_(mask, p),
        concat("CudaRNGStatesTracker: the dropout probability is ", p, "; give one from 0 to 1.").c_str(),
        UserError);
  CHECK_THROWS_WITH_AS(model_parallel_cuda_manual_seed(tracker, 1, -1),
                       "random seeds: a rank of -1 (tp -1, pp 0, dp 0, ep 0, etp 0); ranks count from 0.",
                       UserError);
  CHECK_THROWS_WITH_AS(model_parallel_cuda_manual_seed(tracker, 1, 0, 16, 94),
                       "CudaRNGStatesTracker: seed 2719 already exists, for \"model-parallel-rng\"; give "
                       "\"expert-parallel-rng\" another one, or both would draw the same numbers.",
                       UserError);
  CHECK(tracker.get_states() == before);
}

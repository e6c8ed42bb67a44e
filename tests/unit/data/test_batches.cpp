#include "tests/support/doctest.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "policies/data/global_batches.hpp"
#include "policies/data/packing.hpp"
#include "tests/unit/data/scratch.hpp"

using namespace mgfl::data;
using namespace mgfl::test;
using Ids = std::vector<std::int64_t>;
using Batches = std::vector<Ids>;

namespace {

GlobalBatchesConfig in_order(std::int64_t size, std::int64_t global, std::int64_t micro = 1,
                             std::int64_t rank = 0, std::int64_t ranks = 1) {
  GlobalBatchesConfig config;
  config.dataset_size = size;
  config.global_batch_size = global;
  config.micro_batch_size = micro;
  config.data_parallel_rank = rank;
  config.data_parallel_size = ranks;
  config.shuffle = false;
  return config;
}

Ids sorted(Ids ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

TEST_CASE("after a restart the next batch follows, at any data-parallel size") {
  GlobalBatches alone(in_order(20, 4));
  CHECK(alone.global_batch(12) == Ids{12, 13, 14, 15});
  CHECK(alone.global_batch(16) == Ids{16, 17, 18, 19});
  CHECK(alone.global_batch(20) == Ids{0, 1, 2, 3});
  CHECK(alone.num_micro_batches() == 4);
  GlobalBatches first(in_order(20, 4, 1, 0, 2)), second(in_order(20, 4, 1, 1, 2));
  CHECK(first.micro_batches(12) == Batches{{12}, {14}});
  CHECK(second.micro_batches(12) == Batches{{13}, {15}});
  CHECK(GlobalBatches(in_order(20, 4, 2, 1, 2)).micro_batches(12) == Batches{{14, 15}});
  CHECK(GlobalBatches(in_order(20, 8, 2, 1, 2)).micro_batches(0) == Batches{{2, 3}, {6, 7}});
  CHECK(GlobalBatches(in_order(20, 8, 2, 1, 2)).rank_samples(0) == Ids{2, 3, 6, 7});
  // 12 samples consumed in steps of 4, then steps of 5: none is repeated, none is left out.
  CHECK(GlobalBatches(in_order(20, 5)).global_batch(12) == Ids{12, 13, 14, 15, 16});
}

TEST_CASE("the tail of an epoch goes into the next one's first batch") {
  GlobalBatches batches(in_order(5, 4));
  CHECK(batches.global_batch(4) == Ids{4, 0, 1, 2});
  CHECK(batches.global_batch(8) == Ids{3, 4, 0, 1});
}

TEST_CASE("shuffling: every epoch a permutation, set by seed and epoch alone") {
  auto config = in_order(10, 4);
  config.shuffle = true;
  GlobalBatches batches(config), again(config);
  Ids stream;
  for (std::int64_t k = 0; k < 10; ++k)
    for (const auto n : batches.global_batch(4 * k)) stream.push_back(n);
  std::set<Ids> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const Ids order(stream.begin() + 10 * epoch, stream.begin() + 10 * (epoch + 1));
    CHECK(sorted(order) == Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    orders.insert(order);
  }
  CHECK(orders.size() == 4);
  CHECK(again.global_batch(28) == Ids(stream.begin() + 28, stream.begin() + 32));  // as after a restart
  CHECK(again.global_batch(4) == Ids(stream.begin() + 4, stream.begin() + 8));     // and back
  config.seed = 99;
  CHECK(GlobalBatches(config).global_batch(0) != batches.global_batch(0));
  config.seed = 1234 + (std::uint64_t{1} << 32);
  CHECK(GlobalBatches(config).global_batch(0) != batches.global_batch(0));
  // Any number of ranks takes the same global batch.
  config.seed = 1234;
  config.data_parallel_size = 2;
  Batches parts;
  for (config.data_parallel_rank = 0; config.data_parallel_rank < 2; ++config.data_parallel_rank)
    parts.push_back(GlobalBatches(config).rank_samples(8));
  CHECK(Ids{parts[0][0], parts[1][0], parts[0][1], parts[1][1]} ==
        Ids(stream.begin() + 8, stream.begin() + 12));
}

TEST_CASE("an evaluation shows each sample once and fills up the last batch on all ranks") {
  const auto of_rank = [](std::int64_t rank) {
    auto config = in_order(5, 4, 2, rank, 2);
    config.evaluation = true;
    return GlobalBatches(config);
  };
  CHECK(of_rank(0).batches_per_epoch() == 2);
  CHECK(of_rank(0).micro_batches(0) == Batches{{0, 1}});
  CHECK(of_rank(1).micro_batches(0) == Batches{{2, 3}});
  CHECK(of_rank(0).micro_batches(4) == Batches{{4, padding_sample}});
  CHECK(of_rank(1).micro_batches(4) == Batches{{padding_sample, padding_sample}});
  CHECK(of_rank(0).micro_batches(8) == Batches{{0, 1}});
  auto few = in_order(1, 2);
  few.evaluation = true;
  CHECK(GlobalBatches(few).global_batch(0) == Ids{0, padding_sample});
}

TEST_CASE("batches that cannot be dealt out are refused") {
  const auto refusal = [](const GlobalBatchesConfig& config) {
    return user_error([&] { GlobalBatches{config}; });
  };
  CHECK(has(refusal(in_order(20, 6, 2, 0, 2)), "6", "4"));
  CHECK(has(refusal(in_order(20, 0)), "global batch size", "0"));
  CHECK(has(refusal(in_order(20, 4, 0)), "micro-batch size", "0"));
  CHECK(has(refusal(in_order(3, 4)), "3", "4"));
  CHECK(has(refusal(in_order(0, 4)), "no samples"));
  auto evaluation = in_order(0, 4);
  evaluation.evaluation = true;
  CHECK(has(refusal(evaluation), "no samples"));
  CHECK_THROWS_AS(GlobalBatches{in_order(20, 4, 1, 2, 2)}, mgfl::RunError);
}

TEST_CASE("packing lays samples end to end and keeps documents apart") {
  const std::vector<Sample> samples{make_sample({1, 2, 3}), Sample{{4, 5}, {5, 6}, {1, 0.5}, {0, 1, 2}}};
  const PackedBatch batch = pack(samples);
  CHECK((batch == PackedBatch{{1, 2, 3, 4, 5}, {2, 3, -100, 5, 6}, {1, 1, 0, 1, 0.5}, {0, 3, 4, 5}}));
  CHECK(position_ids(batch.cu_seqlens) == Ids{0, 1, 2, 0, 0});
  CHECK((pack({}) == PackedBatch{{}, {}, {}, {0}}));
  const std::vector<Sample> critics{make_sample({1, 2}, {}, {}, {5, 6}), make_sample({3}, {}, {}, {7})};
  CHECK(pack(critics).returns == std::vector<double>{5, 6, 7});
}

TEST_CASE("micro-batches under a cap of tokens") {
  std::vector<Sample> samples;
  for (const int length : {3, 2, 4, 1, 1, 5}) samples.push_back(make_sample(Ids(length, length)));
  const auto batches = pack_in_order(samples, 5);
  std::vector<std::vector<std::int32_t>> borders;
  Ids all;
  for (const PackedBatch& b : batches) {
    CHECK(b.num_tokens() <= 5);
    borders.push_back(b.cu_seqlens);
    all.insert(all.end(), b.input_ids.begin(), b.input_ids.end());
  }
  CHECK(borders == std::vector<std::vector<std::int32_t>>{{0, 3, 5}, {0, 4, 5}, {0, 1}, {0, 5}});
  CHECK(all == Ids{3, 3, 3, 2, 2, 4, 4, 4, 4, 1, 1, 5, 5, 5, 5, 5});
  CHECK(pack_in_order({}, 5).empty());
  CHECK(has(user_error([&] { pack_in_order(samples, 4); }), "5 tokens", "4 tokens"));
  CHECK(has(user_error([&] { pack_in_order(samples, 0); }), "0"));
}

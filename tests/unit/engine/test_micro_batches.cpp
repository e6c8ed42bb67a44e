// A batch's cut into micro-batches: what holds for every mix of lengths, and that no result knows of it.
#include <map>
#include <random>

#include "tests/support/engines.hpp"

using namespace mgfl;
using test::below;
using test::Lengths;
using test::max_difference;

namespace {

/// One rank's sequences and limits, at random; groups of up to three that lie apart in a third of the cases.
struct Mix {
  std::vector<Batch> ranks;
  MicroBatchLimits limits;
};

Batch numbered_batch(std::mt19937_64& random, const Lengths& lengths) {
  auto batch = test::random_batch(random, lengths, 50);
  batch.token_fields.set("token", test::longs([&] {
                           std::vector<std::int64_t> numbers;
                           for (std::int64_t t = 0; t < batch.num_tokens(); ++t) numbers.push_back(t);
                           return numbers;
                         }()));
  std::vector<std::int64_t> own;
  for (std::size_t s = 0; s < lengths.size(); ++s) own.push_back(static_cast<std::int64_t>(s));
  batch.sequence_fields.set("sequence", test::longs(own));
  return batch;
}

Mix random_mix(std::mt19937_64& random) {
  Mix mix;
  const bool by_tokens = below(random, 4) != 0, grouped = below(random, 3) == 0;
  const std::int64_t cap = 12 + below(random, 60);
  mix.limits.micro_batch_size = 3 + below(random, 4);
  if (by_tokens) mix.limits.max_tokens_per_micro_batch = cap;
  mix.limits.linear_cost = below(random, 2) == 0 ? 24576 : 100;
  const auto ranks = 1 + below(random, 4);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    Lengths lengths(static_cast<std::size_t>(below(random, 5) == 0 ? 0 : below(random, 25)));
    for (auto& length : lengths) length = 1 + below(random, grouped ? cap / 3 : cap);
    auto batch = numbered_batch(random, lengths);
    if (grouped) {
      std::vector<std::int64_t> groups;
      for (std::size_t s = 0; s < lengths.size(); ++s)
        groups.push_back(static_cast<std::int64_t>(s / 3) * 7 - 5);
      std::shuffle(groups.begin(), groups.end(), random);
      batch.groups = test::longs(groups);
    }
    mix.ranks.push_back(std::move(batch));
  }
  return mix;
}

using Cut = std::vector<std::vector<std::int64_t>>;

/// What the engine's ranks do: each its own, then all as many as the one that needs most.
std::vector<Cut> cuts_of(const Mix& mix) {
  std::size_t most = 1;
  for (const auto& rank : mix.ranks) most = std::max(most, micro_batch_sequences(rank, mix.limits, 1).size());
  std::vector<Cut> cuts;
  for (const auto& rank : mix.ranks)
    cuts.push_back(micro_batch_sequences(rank, mix.limits, static_cast<std::int64_t>(most)));
  return cuts;
}

void check_cut(const Batch& batch, const Cut& cut, const MicroBatchLimits& limits) {
  const auto lengths = sequence_lengths(batch);
  std::vector<int> seen(lengths.size());
  std::map<std::int64_t, std::size_t> home_of_group;
  for (std::size_t m = 0; m < cut.size(); ++m) {
    std::int64_t tokens = 0;
    for (const auto s : cut[m]) {
      ++seen.at(static_cast<std::size_t>(s));
      tokens += lengths[static_cast<std::size_t>(s)];
      if (batch.groups.defined()) {
        const auto group = batch.groups[s].item<std::int64_t>();
        CHECK(home_of_group.try_emplace(group, m).first->second == m);
      }
    }
    if (limits.max_tokens_per_micro_batch > 0)
      CHECK(tokens <= limits.max_tokens_per_micro_batch);
    else
      CHECK(static_cast<std::int64_t>(cut[m].size()) <= limits.micro_batch_size);
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

/// Tokens, fields and places of every micro-batch are those of its sequences.
void check_parts(const Batch& batch, const Cut& cut) {
  auto restored = zeros({batch.num_tokens()}, at::kLong).fill_(-1);
  const auto* starts = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  for (const auto& sequences : cut) {
    const auto part = select_sequences(batch, sequences);
    CHECK(part.batch.num_sequences() == static_cast<std::int64_t>(sequences.size()));
    std::int64_t next = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      CHECK(part.batch.sequence_fields.at("sequence")[static_cast<std::int64_t>(i)].item<std::int64_t>() ==
            sequences[i]);
      for (auto t = starts[sequences[i]]; t < starts[sequences[i] + 1]; ++t, ++next) {
        CHECK(part.batch.token_fields.at("token").const_data_ptr<std::int64_t>()[next] == t);
        CHECK(part.places.const_data_ptr<std::int64_t>()[next] == t);
      }
      CHECK(part.batch.cu_seqlens.const_data_ptr<std::int32_t>()[i + 1] == next);
    }
    CHECK(part.batch.num_tokens() == next);
    restored.index_copy_(0, part.places, part.batch.input_ids);
  }
  CHECK(restored.equal(batch.input_ids));
}

/// Loss, log-probabilities and mean gradient of a batch from its sequences one by one, each a batch of its
/// own, added up here.
struct Expected {
  double loss = 0;
  Tensor log_probs, grads;
};

template <class Engine>
Expected one_by_one(Engine& engine, const Batch& batch) {
  Expected expected;
  std::vector<double> log_probs;
  double count = 0;
  expected.grads = engine.optimizer().main_grads().mul(0.0);
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    engine.optimizer_zero_grad();
    const auto result = engine.forward_backward_batch(sequences_of(batch, s, s + 1), SftLoss{});
    const double own = result.metrics.at(0).count;
    expected.loss += result.loss() * own;
    expected.grads.add_(engine.optimizer().main_grads(), own);
    count += own;
    for (const double value : test::numbers(result.log_probs)) log_probs.push_back(value);
  }
  engine.optimizer_zero_grad();
  expected.loss /= count;
  expected.grads.div_(count);
  expected.log_probs = test::doubles(log_probs);
  return expected;
}

}  // namespace

TEST_CASE(
    "1000 mixes: caps hold, counts agree over ranks, sequences come once, groups whole, order restored") {
  std::mt19937_64 random(11);
  int empty_ranks = 0, filled_up = 0, grouped = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    CAPTURE(trial);
    const auto mix = random_mix(random);
    const auto cuts = cuts_of(mix);
    for (std::size_t rank = 0; rank < cuts.size(); ++rank) {
      CHECK(cuts[rank].size() == cuts[0].size());
      check_cut(mix.ranks[rank], cuts[rank], mix.limits);
      if (trial % 10 == 0) check_parts(mix.ranks[rank], cuts[rank]);
      empty_ranks += mix.ranks[rank].num_sequences() == 0;
      filled_up += std::any_of(cuts[rank].begin(), cuts[rank].end(), [](const auto& m) { return m.empty(); });
      grouped += mix.ranks[rank].groups.defined();
    }
  }
  CHECK(empty_ranks > 100);
  CHECK(filled_up > 100);
  CHECK(grouped > 100);
}

TEST_CASE("Fp64: loss, log-probabilities and every gradient of 24 mixes are those of each sequence alone") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder);
  engine.initialize();
  std::mt19937_64 random(12);
  for (int trial = 0; trial < 24; ++trial) {
    CAPTURE(trial);
    Lengths lengths(static_cast<std::size_t>(2 + below(random, 7)));
    for (auto& length : lengths) length = 2 + below(random, trial % 2 == 0 ? 30 : 9);
    auto batch = test::random_batch(random, lengths, engine.config().vocab_size);
    const auto expected = one_by_one(engine, batch);
    const auto longest = *std::max_element(lengths.begin(), lengths.end());
    std::vector<Batch> cuts = {test::in_micro_batches_of(batch, 1), test::in_micro_batches_of(batch, 3),
                               test::under_cap(batch, longest), test::under_cap(batch, 2 * longest + 3)};
    if (trial % 3 == 0) {
      std::vector<std::int64_t> groups;
      for (std::size_t s = 0; s < lengths.size(); ++s) groups.push_back(static_cast<std::int64_t>(s) % 4);
      cuts[3].groups = test::longs(groups);
      cuts[3].options.max_tokens_per_micro_batch = 4 * longest;
    }
    // the mean over the mask's weights of those positions that have a label
    double sum = 0, count = 0;
    const auto labels = validated(batch, 331).labels;
    for (std::int64_t t = 0; t < batch.num_tokens(); ++t) {
      if (labels[t].item<std::int64_t>() == ignore_index) continue;
      const double weight = batch.loss_mask[t].item<float>();
      sum -= weight * expected.log_probs[t].item<double>();
      count += weight;
    }
    CHECK(std::abs(sum / count - expected.loss) < 1e-11);
    std::int64_t fewest = 1000, most = 0;
    for (const auto& cut : cuts) {
      engine.optimizer_zero_grad();
      const auto result = engine.forward_backward_batch(cut, SftLoss{});
      CHECK(std::abs(result.loss() - expected.loss) < 1e-11);
      CHECK(max_difference(result.log_probs, expected.log_probs) < 1e-11);
      CHECK(max_difference(engine.optimizer().main_grads(), expected.grads) < 1e-11);
      CHECK(result.tokens == batch.num_tokens());
      fewest = std::min(fewest, result.num_micro_batches);
      most = std::max(most, result.num_micro_batches);
    }
    CHECK(most == batch.num_sequences());
    CHECK(fewest < most);
    engine.optimizer_zero_grad();
  }
}

TEST_CASE("forward-only calls have limits of their own, and fall back on those of training") {
  const test::Fixture fixture("qwen3");
  EngineConfig config;
  config.micro_batch_size = 2;
  config.infer_micro_batch_size = 4;
  auto engine = test::language_model<optimizer::Fp32>(fixture.folder, config);
  engine.initialize();
  std::mt19937_64 random(13);
  auto batch = test::random_batch(random, Lengths{5, 5, 5, 5, 5, 5, 5, 5}, 331);
  CHECK(engine.forward_backward_batch(batch, SftLoss{}).num_micro_batches == 4);
  CHECK(engine.infer_batch(batch).num_micro_batches == 2);
  batch.options.micro_batch_size = 1;
  CHECK(engine.infer_batch(batch).num_micro_batches == 8);
  batch.options = {};
  batch.options.max_tokens_per_micro_batch = 40;
  CHECK(engine.infer_batch(batch).num_micro_batches == 1);

  config = {};
  config.max_tokens_per_micro_batch = 10;
  auto capped = test::language_model<optimizer::Fp32>(fixture.folder, config);
  capped.initialize();
  batch.options = {};
  CHECK(capped.forward_backward_batch(batch, SftLoss{}).num_micro_batches == 4);
  CHECK(capped.infer_batch(batch).num_micro_batches == 4);
  config.infer_max_tokens_per_micro_batch = 20;
  auto wider = test::language_model<optimizer::Fp32>(fixture.folder, config);
  wider.initialize();
  CHECK(wider.infer_batch(batch).num_micro_batches == 2);
}

TEST_CASE("a sequence over the cap, and a group over either limit, are refused by number") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp32>(fixture.folder);
  engine.initialize();
  std::mt19937_64 random(14);
  auto batch = test::random_batch(random, Lengths{5, 9, 4}, 331);
  CHECK_THROWS_WITH_AS(engine.infer_batch(test::under_cap(batch, 8)),
                       doctest::Contains("sequence 1 has 9 tokens, the cap per micro-batch is 8"), UserError);
  batch.groups = test::longs({3, 8, 3});
  CHECK_THROWS_WITH_AS(
      engine.infer_batch(test::in_micro_batches_of(batch, 1)),
      "group 3 has 2 sequences, more than the 1 of a micro-batch; raise the micro-batch size or "
      "make smaller groups.",
      UserError);
  CHECK_THROWS_WITH_AS(engine.infer_batch(test::in_micro_batches_of(batch, 0)),
                       "the micro-batch size is 0; it must be positive.", UserError);
}

// What goes into the engine and comes out: layouts, labels, fields, options, temperature, refusals.
#include <functional>
#include <random>

#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using test::Lengths;
using test::max_difference;
using test::numbers;

namespace {

/// Rows of unlike length in a table, each starting at its own column; `fill` stands where no token is.
struct Table {
  std::int64_t width = 0;
  std::vector<std::int64_t> firsts;

  Tensor of(const Tensor& packed, const Lengths& lengths, double fill) const {
    const auto rows = static_cast<std::int64_t>(lengths.size());
    auto table = empty({rows, width}, packed.scalar_type()).fill_(fill);
    std::int64_t begin = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto length = lengths[static_cast<std::size_t>(row)];
      table[row]
          .narrow(0, firsts[static_cast<std::size_t>(row)], length)
          .copy_(packed.narrow(0, begin, length));
      begin += length;
    }
    return table;
  }

  PaddedBatch padded(const Batch& packed, const Lengths& lengths) const {
    PaddedBatch batch;
    batch.input_ids = of(packed.input_ids, lengths, 0);
    batch.attention_mask = of(packed.input_ids.mul(0).add(1), lengths, 0);
    batch.loss_mask = of(packed.loss_mask, lengths, 1);  // 1 at padding must not matter
    if (packed.labels.defined()) batch.labels = of(packed.labels, lengths, 7);  // nor a label there
    return batch;
  }
};

/// log_softmax(row / temperature) by hand.
std::vector<double> log_softmax(const double* logits, std::int64_t size, double temperature) {
  std::vector<double> result(static_cast<std::size_t>(size));
  double largest = -1e300, sum = 0;
  for (std::int64_t v = 0; v < size; ++v) largest = std::max(largest, logits[v] / temperature);
  for (std::int64_t v = 0; v < size; ++v) sum += std::exp(logits[v] / temperature - largest);
  for (std::int64_t v = 0; v < size; ++v)
    result[static_cast<std::size_t>(v)] = logits[v] / temperature - largest - std::log(sum);
  return result;
}

}  // namespace

TEST_CASE("packed and padded on either side: the same results, each in its own shape, 0 at padding") {
  const test::Fixture fixture("qwen3");
  auto packed = fixture.packed();
  const auto lengths = sequence_lengths(packed);
  const auto longest = *std::max_element(lengths.begin(), lengths.end());
  EngineConfig config;
  config.calculate_entropy = config.calculate_sum_pi_squared = true;
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder, config);
  engine.initialize();
  for (const bool own_labels : {true, false}) {
    CAPTURE(own_labels);
    if (!own_labels) packed.labels = Tensor();
    const auto whole = engine.forward_backward_batch(packed, SftLoss{});
    const auto whole_grads = engine.optimizer().main_grads().clone();
    if (own_labels)
      CHECK(max_difference(whole.log_probs.neg(), fixture.expected.tensor("packed.token_loss")) < 5e-5);
    Table right{longest + 2, {}}, left{longest + 2, {}}, both{longest + 2, {}};
    for (const auto length : lengths) {
      right.firsts.push_back(0);
      left.firsts.push_back(longest + 2 - length);
      both.firsts.push_back((longest + 2 - length) / 2);
    }
    for (const auto& table : {right, left, both}) {
      const auto batch = table.padded(packed, lengths);
      engine.optimizer_zero_grad();
      const auto result = engine.forward_backward_batch(batch, SftLoss{});
      CHECK(result.log_probs.sizes() == batch.input_ids.sizes());
      CHECK(max_difference(result.log_probs, table.of(whole.log_probs, lengths, 0)) < 1e-12);
      CHECK(max_difference(result.entropy, table.of(whole.entropy, lengths, 0)) < 1e-12);
      CHECK(max_difference(result.sum_pi_squared, table.of(whole.sum_pi_squared, lengths, 0)) < 1e-12);
      CHECK(result.log_probs.mul(batch.attention_mask.eq(0)).abs().max().item<double>() == 0.0);
      CHECK(result.entropy.mul(batch.attention_mask.eq(0)).abs().max().item<double>() == 0.0);
      CHECK(std::abs(result.loss() - whole.loss()) < 1e-12);
      CHECK(result.tokens == packed.num_tokens());
      CHECK(max_difference(engine.optimizer().main_grads(), whole_grads) < 1e-12);
    }
    engine.optimizer_zero_grad();
  }
}

TEST_CASE("a padded batch without a mask is a full table, and bool masks count as well") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder);
  engine.initialize();
  auto packed = fixture.batch();
  packed.labels = Tensor();
  PaddedBatch table;
  table.input_ids = packed.input_ids.view({2, -1});
  table.loss_mask = packed.loss_mask.view({2, -1});
  const auto expected = engine.infer_batch(packed, SftLoss{});
  const auto result = engine.infer_batch(table, SftLoss{});
  CHECK(result.loss() == expected.loss());
  CHECK(result.log_probs.reshape({-1}).equal(expected.log_probs));
  table.attention_mask = table.input_ids.ge(0);
  CHECK(engine.infer_batch(table, SftLoss{}).log_probs.reshape({-1}).equal(expected.log_probs));
}

TEST_CASE("the fixture's padded table gives the recorded token losses") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp32>(fixture.folder);
  engine.initialize();
  PaddedBatch table;
  table.input_ids = fixture.expected.tensor("padded.input_ids");
  table.attention_mask = fixture.expected.tensor("padded.attention_mask");
  table.labels = fixture.expected.tensor("padded.labels");
  const auto result = engine.infer_batch(table, SftLoss{});
  CHECK(max_difference(result.log_probs.neg(), fixture.expected.tensor("padded.token_loss")) < 5e-5);
  CHECK(std::abs(result.loss() - fixture.expected.tensor("packed.mean_loss").item<float>()) < 1e-5);
}

TEST_CASE("labels left out are the next tokens of the same sequence, and nothing at its end") {
  const auto ids = test::longs({5, 6, 7, 8, 9, 10, 11});
  const auto labels = next_tokens(ids, test::borders({3, 1, 0, 3}));
  CHECK(labels.equal(test::longs({6, 7, ignore_index, ignore_index, 10, 11, ignore_index})));

  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder);
  engine.initialize();
  Batch batch;
  batch.input_ids = ids;
  batch.cu_seqlens = test::borders({3, 1, 0, 3});
  const auto result = engine.infer_batch(test::in_micro_batches_of(batch, 4), SftLoss{});
  const auto logits = engine.logits(batch);
  const std::int64_t expected_labels[] = {6, 7, -1, -1, 10, 11, -1};
  double sum = 0;
  for (std::int64_t t = 0; t < 7; ++t) {
    CAPTURE(t);
    const auto label = expected_labels[t];
    const double expected =
        label < 0 ? 0
                  : log_softmax(logits[t].const_data_ptr<double>(), 331, 1)[static_cast<std::size_t>(label)];
    CHECK(std::abs(result.log_probs[t].item<double>() - expected) < 1e-12);
    sum -= expected;
  }
  CHECK(result.metrics.at(0).count == 4);  // 7 tokens, of which three end a sequence
  CHECK(std::abs(result.loss() - sum / 4) < 1e-12);
}

TEST_CASE("no label crosses a document's end: another second document leaves the first one's losses alone") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder);
  engine.initialize();
  for (const std::int64_t micro_batch_size : {1, 2}) {
    Batch batch;
    batch.input_ids = test::longs({3, 1, 4, 1, 5, 200, 9, 2});
    batch.cu_seqlens = test::borders({5, 3});
    batch = test::in_micro_batches_of(batch, micro_batch_size);
    const auto before = engine.infer_batch(batch, SftLoss{});
    batch.input_ids = test::longs({3, 1, 4, 1, 5, 77, 9, 2});
    const auto after = engine.infer_batch(batch, SftLoss{});
    CHECK(before.log_probs.narrow(0, 0, 5).equal(after.log_probs.narrow(0, 0, 5)));
    CHECK(before.log_probs[4].item<double>() == 0.0);
    CHECK(before.metrics.at(0).count == 6);
    CHECK(max_difference(before.log_probs.narrow(0, 5, 3), after.log_probs.narrow(0, 5, 3)) > 1e-3);
  }
}

TEST_CASE("every field reaches the closure beside its own sequences, under any cut") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp32>(fixture.folder);
  engine.initialize();
  std::mt19937_64 random(3);
  const Lengths lengths{4, 9, 1, 7, 3, 8};
  auto batch = test::random_batch(random, lengths, 331);
  std::vector<std::int64_t> owners, positions, numbers_of_sequences;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    numbers_of_sequences.push_back(static_cast<std::int64_t>(s));
    for (std::int64_t t = 0; t < lengths[s]; ++t) {
      owners.push_back(static_cast<std::int64_t>(s));
      positions.push_back(static_cast<std::int64_t>(s) + 2 * t);
    }
  }
  const auto tokens = batch.num_tokens();
  batch.position_ids = test::longs(positions);
  batch.temperature = test::doubles({1.0, 1.1, 1.2, 1.3, 1.4, 1.5});
  batch.token_fields.set("owner", test::longs(owners));
  batch.token_fields.set("pairs", test::waves(2 * tokens).view({tokens, 2}));
  batch.token_fields.set("ids", batch.input_ids.clone());
  batch.sequence_fields.set("number", test::longs(numbers_of_sequences));
  batch.sequence_fields.set("table", test::waves(6 * 3 * 2).view({6, 3, 2}));

  std::vector<int> seen;
  const auto check = [&](const LossInput& input) -> LossTerms {
    const auto& part = input.batch;
    const auto whole_pairs = batch.token_fields.at("pairs"), whole_table = batch.sequence_fields.at("table");
    const auto* starts = batch.cu_seqlens.const_data_ptr<std::int32_t>();
    CHECK(part.token_fields.at("ids").equal(part.input_ids));
    CHECK((part.token_fields.at("owner").scalar_type() == at::kLong));
    std::int64_t begin = 0;
    for (std::int64_t s = 0; s < part.num_sequences(); ++s) {
      const auto number = part.sequence_fields.at("number")[s].item<std::int64_t>();
      const auto length = lengths[static_cast<std::size_t>(number)];
      const auto first = starts[number];
      ++seen[static_cast<std::size_t>(number)];
      CHECK(part.cu_seqlens[s + 1].item<std::int32_t>() == begin + length);
      CHECK(part.sequence_fields.at("table")[s].equal(whole_table[number]));
      CHECK(
          part.token_fields.at("pairs").narrow(0, begin, length).equal(whole_pairs.narrow(0, first, length)));
      CHECK(part.input_ids.narrow(0, begin, length).equal(batch.input_ids.narrow(0, first, length)));
      CHECK(part.loss_mask.narrow(0, begin, length).equal(batch.loss_mask.narrow(0, first, length)));
      CHECK(part.position_ids.narrow(0, begin, length).equal(batch.position_ids.narrow(0, first, length)));
      for (std::int64_t t = 0; t < length; ++t) {
        CHECK(part.token_fields.at("owner")[begin + t].item<std::int64_t>() == number);
        CHECK(part.temperature[begin + t].item<double>() ==
              doctest::Approx(1.0 + 0.1 * static_cast<double>(number)).epsilon(1e-6));
        CHECK(part.labels[begin + t].item<std::int64_t>() ==
              (t + 1 < length ? batch.input_ids[first + t + 1].item<std::int64_t>() : ignore_index));
      }
      begin += length;
    }
    CHECK(part.num_tokens() == begin);
    return {{"loss", input.log_probs.sum(), 1.0}};
  };
  for (const auto& cut :
       {test::in_micro_batches_of(batch, 1), test::in_micro_batches_of(batch, 4), test::under_cap(batch, 9),
        test::under_cap(batch, 17), test::under_cap(batch, 100)}) {
    seen.assign(lengths.size(), 0);
    engine.forward_backward_batch(cut, check, true);
    CHECK(seen == std::vector<int>(lengths.size(), 1));
  }
}

TEST_CASE("fields of a padded batch are packed with their rows") {
  const Lengths lengths{2, 4};
  const Table left{5, {3, 1}};
  Batch packed;
  packed.input_ids = test::longs({11, 12, 13, 14, 15, 16});
  packed.loss_mask = test::floats({1, 1, 1, 1, 1, 1});
  auto padded = left.padded(packed, lengths);
  padded.labels = Tensor();
  padded.token_fields.set("old", left.of(test::doubles({1, 2, 3, 4, 5, 6}), lengths, -1));
  padded.sequence_fields.set("reward", test::doubles({0.5, 0.25}));
  padded.temperature = test::doubles({2, 3});
  padded.groups = test::longs({4, 4});
  padded.options.micro_batch_size = 2;
  const auto result = pack(padded);
  CHECK(result.batch.token_fields.at("old").equal(test::doubles({1, 2, 3, 4, 5, 6})));
  CHECK(result.batch.sequence_fields.at("reward").equal(test::doubles({0.5, 0.25})));
  CHECK(result.batch.groups.equal(padded.groups));
  CHECK(result.batch.options.micro_batch_size == 2);
  CHECK(result.places.equal(test::longs({3, 4, 6, 7, 8, 9})));
  const auto complete = validated(result.batch, 331);
  CHECK(complete.labels.equal(test::longs({12, -100, 14, 15, 16, -100})));
  CHECK(max_difference(complete.temperature, test::doubles({2, 2, 3, 3, 3, 3})) == 0.0);
  // positions from a sequence's first token, wherever it stands in its row
  CHECK((!complete.position_ids.defined() || complete.position_ids.equal(test::longs({0, 1, 0, 1, 2, 3}))));
  auto wide = test::waves(12).view({6, 2});
  CHECK(result.unpack(wide).sizes() == at::IntArrayRef({2, 5, 2}));
  CHECK(result.unpack(wide)[1][1].equal(wide[2]));
  CHECK(result.unpack(wide)[0][0].equal(wide[0].mul(0)));
}

TEST_CASE("a malformed packed batch is refused in words") {
  const auto good = [] {
    Batch batch;
    batch.input_ids = test::longs({1, 2, 3, 4, 5});
    batch.cu_seqlens = test::borders({2, 3});
    return batch;
  };
  CHECK_NOTHROW(validated(good(), 331));
  const auto refused = [&](const std::function<void(Batch&)>& spoil, const std::string& text) {
    auto batch = good();
    spoil(batch);
    const auto message = test::error_of([&] { validated(batch, 331); });
    CHECK(message == text);
  };
  refused([](Batch& b) { b.input_ids = Tensor(); }, "batch: input_ids is missing.");
  refused([](Batch& b) { b.cu_seqlens = Tensor(); }, "batch: cu_seqlens is missing.");
  refused([](Batch& b) { b.input_ids = b.input_ids.to(at::kInt); },
          "batch: input_ids has dtype Int, expected Long.");
  refused(
      [](Batch& b) {
        b.input_ids = b.input_ids.view({1, 5});
      },
      "batch: input_ids has 5 elements in 2 dimensions, expected a contiguous vector of 5.");
  refused([](Batch& b) { b.cu_seqlens = b.cu_seqlens.to(at::kLong); },
          "batch: cu_seqlens has dtype Long, expected Int.");
  refused(
      [](Batch& b) {
        b.cu_seqlens = test::borders({2, 2});
      },
      "batch: cu_seqlens runs from 0 to 4, expected from 0 to the 5 tokens of input_ids.");
  refused([](Batch& b) { b.cu_seqlens = b.cu_seqlens.add(1); },
          "batch: cu_seqlens runs from 1 to 6, expected from 0 to the 5 tokens of input_ids.");
  refused(
      [](Batch& b) {
        b.cu_seqlens = test::borders({4, -1, 2});
      },
      "batch: cu_seqlens falls from 4 to 3 at sequence 1; it must not decrease.");
  refused(
      [](Batch& b) {
        b.labels = test::longs({1, 2, 3, 4});
      },
      "batch: labels has 4 elements in 1 dimensions, expected a contiguous vector of 5.");
  refused(
      [](Batch& b) {
        b.labels = test::floats({1, 2, 3, 4, 5});
      },
      "batch: labels has dtype Float, expected Long.");
  refused(
      [](Batch& b) {
        b.labels = test::longs({1, 2, 331, 4, 5});
      },
      "label 331 at position 2 is outside the vocabulary of 331 tokens; use -100 for positions without a "
      "label.");
  refused(
      [](Batch& b) {
        b.labels = test::longs({1, -1, 3, 4, 5});
      },
      "label -1 at position 1 is outside the vocabulary of 331 tokens; use -100 for positions without a "
      "label.");
  refused(
      [](Batch& b) {
        b.input_ids = test::longs({1, 2, 3, 4, -5});
      },
      "token id -5 at position 4 of input_ids is outside the vocabulary of 331 tokens; the data was made "
      "with "
      "another tokenizer than the model's.");
  refused(
      [](Batch& b) {
        b.loss_mask = test::doubles({1, 1, 1, 1, 1});
      },
      "batch: loss_mask has dtype Double, expected Float.");
  refused(
      [](Batch& b) {
        b.loss_mask = test::floats({1, 1, -0.5, 1, 1});
      },
      "loss_mask is -0.5 at position 2; it must be a finite number of 0 or more.");
  refused(
      [](Batch& b) {
        b.loss_mask = test::floats({1, 1, 1, std::nan(""), 1});
      },
      "loss_mask is nan at position 3; it must be a finite number of 0 or more.");
  refused(
      [](Batch& b) {
        b.position_ids = test::longs({0, 1, 0, -1, 2});
      },
      "position_ids is -1 at position 3; positions count from 0.");
  refused(
      [](Batch& b) {
        b.position_ids = test::longs({0, 1});
      },
      "batch: position_ids has 2 elements in 1 dimensions, expected a contiguous vector of 5.");
  refused([](Batch& b) { b.temperature = test::longs({1}); },
          "batch: temperature has dtype Long, expected a floating-point one.");
  refused(
      [](Batch& b) {
        b.temperature = test::doubles({1, 2, 3});
      },
      "batch: temperature has shape [3]; give one number, one for each of the 2 sequences, or one for each "
      "of "
      "the 5 tokens.");
  refused(
      [](Batch& b) {
        b.temperature = test::doubles({1, -2});
      },
      "batch: temperature is -2 at entry 1; it must be a finite number of 0 or more.");
  refused([](Batch& b) { b.temperature = test::doubles({std::numeric_limits<double>::infinity()}); },
          "batch: temperature is inf at entry 0; it must be a finite number of 0 or more.");
  refused([](Batch& b) { b.groups = test::longs({1}); },
          "batch: groups has 1 elements in 1 dimensions, expected a contiguous vector of 2.");
  refused([](Batch& b) { b.token_fields.set("old", {}); },
          "batch: the field \"old\" is an undefined tensor; leave it out.");
  refused(
      [](Batch& b) {
        b.token_fields.set("old", test::doubles({1, 2}));
      },
      "batch: the field \"old\" has shape [2], but one entry for each of the 5 tokens is needed.");
  refused(
      [](Batch& b) {
        b.sequence_fields.set("reward", test::waves(6).view({3, 2}));
      },
      "batch: the field \"reward\" has shape [3, 2], but one entry for each of the 2 sequences is needed.");
  CHECK(test::error_of([] {
          Fields({{"a", test::longs({1})}, {"a", test::longs({2})}});
        }) == "batch: the field \"a\" is given twice.");
  CHECK(test::contains(test::error_of([] {
                         Fields({{"a", test::longs({1})}}).at("b");
                       }),
                       "batch: there is no field \"b\"; it has "));
}

TEST_CASE("a malformed padded batch is refused in words") {
  const auto good = [] {
    PaddedBatch batch;
    batch.input_ids = test::longs({1, 2, 3, 4, 5, 0}).view({2, 3});
    batch.attention_mask = test::longs({1, 1, 1, 1, 1, 0}).view({2, 3});
    return batch;
  };
  CHECK(pack(good()).batch.num_tokens() == 5);
  const auto refused = [&](const std::function<void(PaddedBatch&)>& spoil, const std::string& text) {
    auto batch = good();
    spoil(batch);
    const auto message = test::error_of([&] { pack(batch); });
    CHECK(message == text);
  };
  refused([](PaddedBatch& b) { b.input_ids = b.input_ids.view({-1}); },
          "padded batch: input_ids has 1 dimensions; it must be [sequences, length].");
  refused([](PaddedBatch& b) { b.input_ids = Tensor(); },
          "padded batch: input_ids has 0 dimensions; it must be [sequences, length].");
  refused(
      [](PaddedBatch& b) {
        b.attention_mask = test::longs({1, 1, 1, 1}).view({2, 2});
      },
      "padded batch: attention_mask has shape [2, 2], but input_ids has [2, 3].");
  refused([](PaddedBatch& b) { b.attention_mask = b.attention_mask.to(at::kFloat); },
          "padded batch: attention_mask has dtype Float; it must be an integer or bool type.");
  refused(
      [](PaddedBatch& b) {
        b.attention_mask = test::longs({1, 1, 1, 1, 2, 0}).view({2, 3});
      },
      "attention_mask is 2 in row 1 at position 1; it must be 1 for tokens and 0 for padding.");
  refused(
      [](PaddedBatch& b) {
        b.attention_mask = test::longs({1, 0, 1, 1, 1, 0}).view({2, 3});
      },
      "attention_mask has a hole in row 0 at position 1; padding may stand before or after a sequence, not "
      "inside.");
  for (const auto* name : {"labels", "position_ids"})
    refused(
        [&](PaddedBatch& b) {
          (std::string(name) == "labels" ? b.labels : b.position_ids) = test::longs({1, 2, 3}).view({3, 1});
        },
        concat("padded batch: ", name, " has shape [3, 1], but input_ids has [2, 3]."));
  refused(
      [](PaddedBatch& b) {
        b.loss_mask = test::floats({1, 1}).view({2, 1});
      },
      "padded batch: loss_mask has shape [2, 1], but input_ids has [2, 3].");
  refused([](PaddedBatch& b) { b.token_fields.set("old", test::waves(5)); },
          "padded batch: the field \"old\" has shape [5], but input_ids has [2, 3].");
}

TEST_CASE("a batch's options go before the engine's") {
  const test::Fixture fixture("qwen3");
  for (const bool asked : {false, true}) {
    EngineConfig config;
    config.micro_batch_size = 2;
    config.calculate_entropy = config.calculate_sum_pi_squared = asked;
    config.use_fused_kernels = asked;
    auto engine = test::language_model<optimizer::Fp32>(fixture.folder, config);
    engine.initialize();
    bool saw_logits = false;
    const auto closure = [&](const LossInput& input) -> LossTerms {
      saw_logits = input.logits.defined();
      return {{"loss", input.log_probs.sum(), 1.0}};
    };
    auto batch = fixture.batch();
    auto result = engine.forward_backward_batch(batch, closure, true);
    CHECK(result.entropy.defined() == asked);
    CHECK(result.sum_pi_squared.defined() == asked);
    CHECK(saw_logits == !asked);
    CHECK(result.num_micro_batches == 1);
    batch.options.calculate_entropy = !asked;
    batch.options.calculate_sum_pi_squared = !asked;
    batch.options.use_fused_kernels = !asked;
    batch.options.micro_batch_size = 1;
    result = engine.forward_backward_batch(batch, closure, true);
    CHECK(result.entropy.defined() == !asked);
    CHECK(result.sum_pi_squared.defined() == !asked);
    CHECK(saw_logits == asked);
    CHECK(result.num_micro_batches == 2);
    // the options of one batch end with it
    CHECK(engine.infer_batch(fixture.batch()).entropy.defined() == asked);
  }
}

TEST_CASE("temperature: one number, one a sequence, one a token; results are those of logits / temperature") {
  const test::Fixture fixture("qwen3");
  EngineConfig config;
  config.calculate_entropy = config.calculate_sum_pi_squared = true;
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder, config);
  engine.initialize();
  const Lengths lengths{3, 5, 4};
  std::mt19937_64 random(4);
  auto batch = test::random_batch(random, lengths, 331);
  const auto logits = engine.logits(batch);
  const auto labels = validated(batch, 331).labels;
  std::vector<double> per_token;
  for (int t = 0; t < 12; ++t) per_token.push_back(0.5 + 0.1 * t);
  per_token[7] = 0;  // the floor
  struct Case {
    Tensor given;
    std::vector<double> of_token;
  };
  const std::vector<Case> cases = {
      {{}, std::vector<double>(12, 1.0)},
      {test::floats({2}), std::vector<double>(12, 2.0)},
      {test::floats({2}).view(at::IntArrayRef{}), std::vector<double>(12, 2.0)},
      {test::doubles({0.7, 1.3, 2.5}), {0.7, 0.7, 0.7, 1.3, 1.3, 1.3, 1.3, 1.3, 2.5, 2.5, 2.5, 2.5}},
      {test::doubles(per_token), per_token}};
  for (const bool fused : {true, false})
    for (const std::int64_t micro_batch_size : {1, 3})
      for (const auto& one : cases) {
        batch.temperature = one.given;
        batch.options.use_fused_kernels = fused;
        batch.options.micro_batch_size = micro_batch_size;
        const auto result = engine.infer_batch(batch);
        for (std::int64_t t = 0; t < 12; ++t) {
          CAPTURE(t);
          const double temperature = std::max(one.of_token[static_cast<std::size_t>(t)], 1e-8);
          const auto expected = log_softmax(logits[t].const_data_ptr<double>(), 331, temperature);
          double entropy = 0, squares = 0;
          for (const double value : expected) {
            const double p = std::exp(value);
            if (p > 0) entropy -= p * value;
            squares += p * p;
          }
          const auto label = labels[t].item<std::int64_t>();
          const double log_prob = label < 0 ? 0.0 : expected[static_cast<std::size_t>(label)];
          CHECK(result.log_probs[t].item<double>() == doctest::Approx(log_prob).epsilon(1e-12));
          CHECK(std::abs(result.entropy[t].item<double>() - entropy) < 1e-11);
          CHECK(std::abs(result.sum_pi_squared[t].item<double>() - squares) < 1e-11);
        }
      }
}

TEST_CASE("a part of a batch is the batch's part: fields, groups, options, temperature in every form") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder);
  engine.initialize();
  std::mt19937_64 random(6);
  auto batch = test::random_batch(random, Lengths{3, 5, 4, 2}, 331);
  batch.position_ids = test::longs({0, 1, 2, 3, 1, 2, 5, 8, 0, 1, 2, 3, 4, 6});
  batch.token_fields.set("wave", test::waves(14));
  batch.sequence_fields.set("number", test::longs({0, 1, 2, 3}));
  batch.groups = test::longs({5, 6, 6, 5});
  batch.options.micro_batch_size = 4;
  for (const auto& temperature :
       {Tensor(), test::doubles({0.5}), test::doubles({0.5, 1.5, 2.5, 3.5}), test::waves(14).add(2)}) {
    batch.temperature = temperature;
    const auto part = sequences_of(batch, 1, 3);
    CHECK(part.num_sequences() == 2);
    CHECK(part.cu_seqlens.equal(test::borders({5, 4})));
    CHECK(part.input_ids.equal(batch.input_ids.narrow(0, 3, 9)));
    CHECK(part.loss_mask.equal(batch.loss_mask.narrow(0, 3, 9)));
    CHECK(part.position_ids.equal(batch.position_ids.narrow(0, 3, 9)));
    CHECK(part.token_fields.at("wave").equal(test::waves(14).narrow(0, 3, 9)));
    CHECK(part.sequence_fields.at("number").equal(test::longs({1, 2})));
    CHECK(part.groups.equal(test::longs({6, 6})));
    CHECK(part.options.micro_batch_size == 4);
    const auto whole = engine.infer_batch(batch).log_probs, own = engine.infer_batch(part).log_probs;
    CHECK(max_difference(own, whole.narrow(0, 3, 9)) < 1e-12);
  }
  CHECK(sequences_of(batch, 2, 2).num_tokens() == 0);
}

TEST_CASE("position_ids are what attention rotates by: a shift changes nothing, gaps do") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder);
  engine.initialize();
  std::mt19937_64 random(7);
  auto batch = test::random_batch(random, Lengths{4, 3}, 331);
  const auto plain = engine.infer_batch(batch).log_probs;
  batch.position_ids = test::longs({0, 1, 2, 3, 0, 1, 2});
  CHECK(engine.infer_batch(batch).log_probs.equal(plain));
  batch.position_ids = test::longs({7, 8, 9, 10, 20, 21, 22});
  CHECK(max_difference(engine.infer_batch(batch).log_probs, plain) < 1e-11);
  batch.position_ids = test::longs({0, 5, 9, 30, 0, 1, 2});
  const auto gaps = engine.infer_batch(batch).log_probs;
  CHECK(max_difference(gaps.narrow(0, 0, 4), plain.narrow(0, 0, 4)) > 1e-3);
  CHECK(max_difference(gaps.narrow(0, 4, 3), plain.narrow(0, 4, 3)) < 1e-12);
}

TEST_CASE("a row without a token is no token, and the rest is as without it") {
  const test::Fixture fixture("qwen3");
  auto engine = test::language_model<optimizer::Fp64>(fixture.folder);
  engine.initialize();
  PaddedBatch table;
  table.input_ids = test::longs({1, 2, 3, 9, 9, 9, 4, 5, 6}).view({3, 3});
  table.attention_mask = test::longs({1, 1, 1, 0, 0, 0, 0, 1, 1}).view({3, 3});
  Batch packed;
  packed.input_ids = test::longs({1, 2, 3, 5, 6});
  packed.cu_seqlens = test::borders({3, 2});
  for (const std::int64_t size : {1, 3}) {
    table.options.micro_batch_size = size;
    engine.optimizer_zero_grad();
    const auto result = engine.forward_backward_batch(table, SftLoss{});
    const auto grads = engine.optimizer().main_grads().clone();
    const auto expected = engine.infer_batch(packed, SftLoss{});
    CHECK(result.log_probs[1].abs().max().item<double>() == 0.0);
    CHECK(std::abs(result.loss() - expected.loss()) < 1e-12);
    CHECK(result.tokens == 5);
    CHECK(max_difference(grads, test::gradients_of(engine, packed, SftLoss{})) < 1e-12);
  }
}

#include "tests/support/doctest.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "policies/data/gpt_dataset.hpp"
#include "tests/unit/data/scratch.hpp"

using namespace mgfl::data;
using namespace mgfl::test;
using Ids = std::vector<std::int64_t>;

namespace {

const std::string folder = MGFL_TEST_DATA "/megatron/";

GptDatasetConfig config_of(const nlohmann::json& run) {
  GptDatasetConfig config;
  config.sequence_length = run["sequence_length"];
  config.random_seed = run["random_seed"];
  config.split = run["split"] == "valid" ? Split::valid : Split::train;
  config.add_extra_token_to_sequence = run["add_extra_token_to_sequence"];
  config.drop_last_partial_validation_sequence = run["drop_last_partial_validation_sequence"];
  config.eod_token_id = run["eod"].get<std::int64_t>();
  config.pad_token_id = run["pad"];
  config.reset_position_ids = run["reset_position_ids"];
  config.reset_attention_mask = run["reset_attention_mask"];
  config.eod_mask_loss = run["eod_mask_loss"];
  config.inter_document_masking = run["inter_document_masking"];
  return config;
}

// For each position the first one of its document.
Ids first_visible_key(const Sample& sample) {
  Ids first;
  for (std::size_t d = 0; d + 1 < sample.cu_seqlens.size(); ++d)
    for (auto t = sample.cu_seqlens[d]; t < sample.cu_seqlens[d + 1]; ++t)
      first.push_back(sample.cu_seqlens[d]);
  return first;
}

// `lengths` sequences, numbered through from 1, as int32.
std::string write(const Scratch& scratch, const std::vector<int>& lengths) {
  IndexedDatasetBuilder builder(scratch.path("set"), TokenDtype::int32);
  std::int64_t id = 1;
  for (const int length : lengths) {
    Ids ids;
    for (int i = 0; i < length; ++i) ids.push_back(id++);
    builder.add_item(ids);
    builder.end_document();
  }
  builder.finalize();
  return scratch.path("set");
}

}  // namespace

TEST_CASE("GptDataset has Megatron's indices and samples") {
  std::ifstream file(folder + "indexed_dataset.json");
  const auto fixture = nlohmann::json::parse(file);
  int runs = 0;
  for (const std::string name : {"ids_int32", "ids_uint16"})
    for (const auto& run : fixture[name]["gpt_dataset_runs"]) {
      const std::string label = run["name"];
      INFO(name, ": ", label);
      std::optional<std::int64_t> num_samples;
      if (!run["num_samples"].is_null()) num_samples = run["num_samples"].get<std::int64_t>();
      const GptDataset set(IndexedDataset(folder + name), config_of(run), num_samples,
                           run["sequences_used"].get<Ids>());
      CHECK(set.size() == run["length"].get<std::int64_t>());
      CHECK(set.document_index() == run["document_index"].get<Ids>());
      CHECK(set.shuffle_index() == run["shuffle_index"].get<Ids>());
      REQUIRE(set.sample_index().size() == run["sample_index"].size());
      for (std::size_t i = 0; i < set.sample_index().size(); ++i) {
        CHECK(set.sample_index()[i].document == run["sample_index"][i][0].get<std::int64_t>());
        CHECK(set.sample_index()[i].offset == run["sample_index"][i][1].get<std::int64_t>());
      }
      std::int64_t number = 0;
      for (const auto& expected : run["samples"]) {
        const Sample sample = set.sample(number++);
        CHECK(sample.input_ids == expected["tokens"].get<Ids>());
        CHECK(sample.labels == expected["labels"].get<Ids>());
        CHECK(sample.loss_mask == expected["loss_mask"].get<std::vector<float>>());
        CHECK(position_ids(sample.cu_seqlens).size() == sample.input_ids.size());
        CHECK(position_ids(sample.cu_seqlens) == expected["position_ids"].get<Ids>());
        if (expected.contains("first_visible_key"))
          CHECK(first_visible_key(sample) == expected["first_visible_key"].get<Ids>());
        if (expected.contains("cu_seqlens")) {
          CHECK(sample.cu_seqlens == expected["cu_seqlens"].get<std::vector<std::int32_t>>());
          std::int32_t longest = 0;
          for (std::size_t d = 1; d < sample.cu_seqlens.size(); ++d)
            longest = std::max(longest, sample.cu_seqlens[d] - sample.cu_seqlens[d - 1]);
          CHECK(longest == expected["max_seqlen"].get<std::int32_t>());
        }
      }
      if (run["sequences_used"].size() == fixture[name]["sequences"].size()) {
        const GptDataset all(IndexedDataset(folder + name), config_of(run), num_samples);
        CHECK(all.document_index() == set.document_index());
      }
      ++runs;
    }
  CHECK(runs == 16);
}

TEST_CASE("without shuffling samples come in the order of the file, epoch after epoch") {
  const Scratch scratch;
  GptDatasetConfig config;
  config.sequence_length = 4;
  config.shuffle = false;
  const GptDataset set(IndexedDataset(write(scratch, {3, 0, 5, 2})), config, 5);  // 10 tokens
  CHECK(set.size() == 7);                                                         // 29 / 4, from 3 epochs
  CHECK(set.sample(0).input_ids == Ids{1, 2, 3, 4});
  CHECK(set.sample(0).labels == Ids{2, 3, 4, 5});
  CHECK(set.sample(2).input_ids == Ids{9, 10, 1, 2});
  CHECK(set.sample(2).labels == Ids{10, 1, 2, 3});
  CHECK_THROWS_AS(set.sample(7), mgfl::RunError);
}

TEST_CASE(
    "a kept partial sample is padded, the padding does not count, and nothing leaks into other samples") {
  const Scratch scratch;
  GptDatasetConfig config;
  config.sequence_length = 4;
  config.shuffle = false;
  config.split = Split::valid;
  config.drop_last_partial_validation_sequence = false;
  const GptDataset set(IndexedDataset(write(scratch, {7})), config);
  REQUIRE(set.size() == 2);
  const Sample whole = set.sample(0), partial = set.sample(1);
  CHECK(partial.input_ids == Ids{5, 6, 7, 0});
  CHECK(partial.labels == Ids{6, 7, 0, 0});
  CHECK(partial.loss_mask == std::vector<float>{1, 1, 0, 0});
  for (int i = 0; i < 100; ++i) CHECK((set.sample(i % 3 != 0) == (i % 3 != 0 ? partial : whole)));
  CHECK(whole.loss_mask == std::vector<float>{1, 1, 1, 1});
}

TEST_CASE("the mask of a pad in the middle belongs to its sample alone") {
  const Scratch scratch;
  IndexedDatasetBuilder builder(scratch.path("pads"), TokenDtype::int32);
  builder.add_item(Ids{4, 5, 6, 99, 7, 1, 2, 3, 4});
  builder.end_document();
  builder.finalize();
  GptDatasetConfig config;
  config.sequence_length = 4;
  config.shuffle = false;
  config.pad_token_id = 99;
  const GptDataset set{IndexedDataset(scratch.path("pads")), config};
  for (const int i : {0, 1, 1, 0, 1}) {
    CHECK((set.sample(i).loss_mask ==
           (i == 0 ? std::vector<float>{1, 1, 0, 1} : std::vector<float>{1, 1, 1, 1})));
  }
}

TEST_CASE("splits end where Megatron's do") {
  using Parts = std::array<std::pair<std::int64_t, std::int64_t>, 3>;
  CHECK((split_sequences("969,30,1", 1000) == Parts{{{0, 969}, {969, 999}, {999, 1000}}}));
  CHECK((split_sequences("969,30,1", 37) == Parts{{{0, 36}, {36, 37}, {37, 37}}}));
  CHECK((split_sequences("1,0,0", 12) == Parts{{{0, 12}, {12, 12}, {12, 12}}}));
  CHECK((split_sequences("0.5,0.25,0.25", 10) == Parts{{{0, 5}, {5, 8}, {8, 10}}}));
  CHECK((split_sequences("1,1", 5) == Parts{{{0, 2}, {2, 5}, {5, 5}}}));  // 2.5 goes to the even 2
  CHECK((split_sequences("99,1", 50) == Parts{{{0, 50}, {50, 50}, {50, 50}}}));
  for (const char* wrong : {"", "0,0,0", "1,2,3,4", "a", "1,,1", "-1,2", "1,nan", "1;2"})
    CHECK(has(user_error([&] { split_sequences(wrong, 10); }), "969,30,1"));
}

TEST_CASE("what cannot be sampled is refused") {
  const Scratch scratch;
  const IndexedDataset data(write(scratch, {3, 5}));
  const auto refusal = [&](auto change, std::optional<std::int64_t> num_samples = {}) {
    GptDatasetConfig config;
    config.sequence_length = 4;
    change(config);
    return user_error([&] { GptDataset(data, config, num_samples); });
  };
  CHECK(refusal([](auto&) {}) == "no error");
  CHECK(has(refusal([](auto& c) { c.sequence_length = 8; }), "set", "8 tokens", "9"));
  CHECK(refusal([](auto& c) { c.sequence_length = 8; }, 3) == "no error");
  CHECK(has(refusal([](auto& c) { c.sequence_length = 0; }), "sequence length", "0"));
  CHECK(has(refusal([](auto& c) { c.random_seed = -1; }), "-1"));
  CHECK(has(refusal([](auto& c) { c.random_seed = 4294967296; }), "4294967296"));
  CHECK(has(refusal([](auto&) {}, 0), "0 samples"));
  CHECK(has(refusal([](auto&) {}, INT64_MAX), "9223372036854775807"));
  CHECK(has(refusal([](auto& c) { c.eod_mask_loss = true; }), "eod_token_id"));
  CHECK(has(refusal([](auto& c) { c.reset_position_ids = true; }), "reset_attention_mask"));
  CHECK(has(refusal([](auto& c) {
              c.reset_position_ids = c.reset_attention_mask = c.inter_document_masking = true;
            }),
            "inter_document_masking"));
  const Scratch other;
  CHECK(has(user_error([&] {
              GptDatasetConfig config;
              config.sequence_length = 4;
              GptDataset(IndexedDataset(write(other, {0, 0})), config, 3);
            }),
            "0 tokens"));
}

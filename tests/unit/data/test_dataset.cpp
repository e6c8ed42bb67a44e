#include "tests/support/doctest.hpp"

#include <cmath>

#include "policies/data/dataset.hpp"
#include "policies/data/global_batches.hpp"
#include "policies/data/sample_names.hpp"
#include "tests/unit/data/scratch.hpp"

using namespace mgfl::data;
using namespace mgfl::test;
using Ids = std::vector<std::int64_t>;
using Mask = std::vector<float>;
using Words = std::vector<std::string>;

namespace {

const std::string folder = MGFL_TEST_DATA "/megatron/";

// What opening a file of this text says.
std::string refusal(const std::string& text) {
  const Scratch scratch;
  return user_error([&] { JsonlDataset{scratch.write("data.jsonl", text)}; });
}

}  // namespace

TEST_CASE("jsonl: labels and masks are given or follow from the tokens") {
  const Scratch scratch;
  const JsonlDataset set(scratch.write("data.jsonl", R"({"input_ids": [5, 6, 7]}

  {"labels": [9, -100, 8], "input_ids": [1, 2, 3], "loss_mask": [0.5, 1, 0], "source": "a book"}  )"
                                                     "\r\n \t\r\n"
                                                     R"({"input_ids":[4],"loss_mask":[1]})"));
  REQUIRE(set.size() == 3);
  for (int repeat = 0; repeat < 3; ++repeat) {
    CHECK((set.sample(0) == Sample{{5, 6, 7}, {6, 7, -100}, {1, 1, 0}, {0, 3}}));
    CHECK((set.sample(1) == Sample{{1, 2, 3}, {9, -100, 8}, {0.5, 0, 0}, {0, 3}}));
    CHECK((set.sample(2) == Sample{{4}, {-100}, {0}, {0, 1}}));
  }
  CHECK_THROWS_AS(set.sample(3), mgfl::RunError);
}

TEST_CASE("returns are read on demand, and then all positions count that a label or the mask leaves") {
  const Scratch scratch;
  const auto file = scratch.write("data.jsonl", R"({"input_ids": [5, 6, 7], "returns": [0.1, -2, 1e3]}
  {"input_ids": [1, 2], "labels": [2, -100], "returns": [1, 2]}
  {"input_ids": [3, 4], "loss_mask": [0, 1], "returns": [1, 2]})");
  const JsonlDataset set(file, true);
  CHECK((set.sample(0) == Sample{{5, 6, 7}, {5, 6, 7}, {1, 1, 1}, {0, 3}, {0.1, -2, 1000}}));
  CHECK((set.sample(1) == Sample{{1, 2}, {2, -100}, {1, 0}, {0, 2}, {1, 2}}));
  CHECK((set.sample(2) == Sample{{3, 4}, {3, 4}, {0, 1}, {0, 2}, {1, 2}}));
  CHECK((JsonlDataset(file).sample(0) == Sample{{5, 6, 7}, {6, 7, -100}, {1, 1, 0}, {0, 3}}));
  CHECK((SafetensorsDataset("f", 2, 2, {1, 2, 3, 4}, {}, {}, {5, 6, 7, 8}).sample(1) ==
         Sample{{3, 4}, {3, 4}, {1, 1}, {0, 2}, {7, 8}}));

  const auto refused = [&](const std::string& line) {
    return user_error([&] { JsonlDataset(scratch.write("bad.jsonl", line), true); });
  };
  CHECK(has(refused(R"({"input_ids": [1]})"), "bad.jsonl, line 1", "no \"returns\""));
  CHECK(has(refused(R"({"input_ids": [1], "returns": 1})"), "line 1", "no list", "returns"));
  CHECK(has(refused(R"({"input_ids": [1], "returns": [1, 2]})"), "1 input_ids", "2 returns"));
  CHECK(has(refused(R"({"input_ids": [1], "returns": ["1"]})"), "\"1\"", "position 0", "returns"));
  CHECK(has(refused(R"({"input_ids": [1], "returns": [1e60]})"), "position 0", "returns"));
  CHECK(has(user_error([] {
              SafetensorsDataset("f.st", 1, 2, {1, 2}, {}, {}, {1});
            }),
            "returns of f.st", "1 values"));
}

TEST_CASE("jsonl: errors name file and line") {
  const std::string good = "{\"input_ids\": [1, 2]}\n";
  const auto third = [&](const std::string& line) { return refusal(good + "\n" + line + "\n" + good); };
  CHECK(third(good) == "no error");
  CHECK(has(third("{\"input_ids\": [1, 2}"), "data.jsonl, line 3,", "JSON"));
  CHECK(has(third("[1, 2]"), "data.jsonl, line 3,", "object"));
  CHECK(has(third("{}"), "line 3", "input_ids"));
  CHECK(has(third(R"({"input_ids": 7})"), "line 3", "input_ids"));
  CHECK(has(third(R"({"input_ids": []})"), "line 3", "no token"));
  CHECK(has(third(R"({"input_ids": [1, -1]})"), "line 3", "-1", "position 1"));
  CHECK(has(third(R"({"input_ids": [1, 2.0]})"), "line 3", "2.0", "position 1"));
  CHECK(has(third(R"({"input_ids": [1, "2"]})"), "line 3", "\"2\""));
  CHECK(has(third(R"({"input_ids": [1, null]})"), "line 3", "null"));
  CHECK(has(third(R"({"input_ids": [9223372036854775808]})"), "line 3", "9223372036854775808"));
  CHECK(has(third(R"({"input_ids": [1], "labels": [1, 2]})"), "line 3", "1 input_ids", "2 labels"));
  CHECK(has(third(R"({"input_ids": [1], "labels": []})"), "line 3", "1 input_ids", "0 labels"));
  CHECK(has(third(R"({"input_ids": [1], "labels": [-1]})"), "line 3", "-1", "labels"));
  CHECK(has(third(R"({"input_ids": [1], "loss_mask": [1, 1]})"), "line 3", "2 values"));
  CHECK(has(third(R"({"input_ids": [1], "loss_mask": [-1]})"), "line 3", "-1", "loss_mask"));
  CHECK(has(third(R"({"input_ids": [1], "loss_mask": [1e60]})"), "line 3", "loss_mask"));
  CHECK(has(third(R"({"input_ids": [1], "lables": [2]})"), "line 3", "lables", "\"labels\"?"));
  CHECK(has(third(R"({"input_ids": [1], "label": [2]})"), "line 3", "\"label\"", "\"labels\"?"));
  CHECK(has(third(R"({"input_ids": [1], "position_ids": [2]})"), "line 3", "position_ids"));
  CHECK(has(third("\xff\xfe"), "line 3"));
  CHECK(has(refusal(""), "data.jsonl", "no samples"));
  CHECK(has(refusal(" \n\n\t\r\n"), "data.jsonl", "no samples"));
  CHECK(has(user_error([] { JsonlDataset{"/no/such/file.jsonl"}; }), "/no/such/file.jsonl"));
  CHECK(has(user_error([] { JsonlDataset{"/"}; }), "regular"));
}

TEST_CASE("safetensors: rows of the tensors") {
  const SafetensorsDataset set("f.safetensors", 2, 3, {1, 2, 3, 4, 5, 6}, {2, 3, -100, 5, -100, 7},
                               {1, 0, 1, 1, 1, 1});
  CHECK((set.sample(0) == Sample{{1, 2, 3}, {2, 3, -100}, {1, 0, 0}, {0, 3}}));
  CHECK((set.sample(1) == Sample{{4, 5, 6}, {5, -100, 7}, {1, 0, 1}, {0, 3}}));
  CHECK((SafetensorsDataset("f", 2, 2, {1, 2, 3, 4}).sample(1) == Sample{{3, 4}, {4, -100}, {1, 0}, {0, 2}}));
  CHECK_THROWS_AS(set.sample(2), mgfl::RunError);
  CHECK(has(user_error([] { SafetensorsDataset("f.st", 2, 3, {1, 2, 3, 4, 5}); }), "f.st", "5", "[2, 3]"));
  CHECK(has(user_error([] { SafetensorsDataset("f.st", 1, 2, {1, 2}, {1}); }), "labels of f.st", "1 values"));
  CHECK(has(user_error([] {
              SafetensorsDataset("f.st", 1, 2, {1, 2}, {}, {1, 1, 1});
            }),
            "loss_mask of f.st", "3"));
  CHECK(has(user_error([] { SafetensorsDataset("f.st", 1, 2, {1, 2}, {}, {1, -1}); }), "f.st", "position 1"));
  CHECK(has(user_error([] { SafetensorsDataset("f.st", 0, 2, {}); }), "f.st", "[0, 2]"));
}

TEST_CASE("safetensors: a padded row's sample is its tokens alone") {
  const float nan = std::nanf("");
  const SafetensorsDataset set(
      "f.st", 3, 4, {0, 0, 5, 6, 7, 8, 9, 0, 0, 3, 4, 0}, {}, {nan, nan, 1, 1, 1, 0.5, 1, -1, -1, 1, 1, nan},
      {nan, nan, 1, 2, 3, 4, 5, nan, nan, 6, 0.1, nan}, {0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0});
  CHECK((set.sample(0) == Sample{{5, 6}, {5, 6}, {1, 1}, {0, 2}, {1, 2}}));
  CHECK((set.sample(1) == Sample{{7, 8, 9}, {7, 8, 9}, {1, 0.5, 1}, {0, 3}, {3, 4, 5}}));
  CHECK((set.sample(2) == Sample{{3, 4}, {3, 4}, {1, 1}, {0, 2}, {6, 0.1}}));
  const SafetensorsDataset labelled("f.st", 1, 3, {1, 2, 0}, {2, 9, -7}, {}, {}, {1, 1, 0});
  CHECK((labelled.sample(0) == Sample{{1, 2}, {2, 9}, {1, 1}, {0, 2}}));
  CHECK((SafetensorsDataset("f.st", 1, 3, {0, 1, 2}, {}, {}, {}, {0, 1, 1}).sample(0) ==
         Sample{{1, 2}, {2, -100}, {1, 0}, {0, 2}}));

  const auto refused = [](Ids mask, Mask loss_mask = {}) {
    return user_error([&] { SafetensorsDataset("f.st", 2, 3, {1, 2, 3, 4, 5, 6}, {}, loss_mask, {}, mask); });
  };
  CHECK(refused({1, 1, 0, 0, 1, 1}) == "no error");
  CHECK(has(refused({1, 1, 1, 1, 0, 1}), "f.st: ", "hole in row 1 at position 1"));
  CHECK(has(refused({1, 1, 1, 1, 1, 7}), "f.st: ", "attention_mask is 7 in row 1 at position 2"));
  CHECK(has(refused({1, 1, 1, 0, 0, 0}), "f.st: ", "0 all along row 1"));
  CHECK(has(refused({1, 1, 1}), "attention_mask of f.st", "3 values"));
  CHECK(has(refused({1, 1, 0, 0, 1, 1}, {1, 1, 1, 1, -2, 1}), "-2 in sample 1 at position 1"));
}

TEST_CASE("names of a sample: known, refused, slips of the pen, and the user's own") {
  const auto said = [](std::string_view name, SampleNames names) {
    return user_error([&] { check_sample_name(name, names); });
  };
  for (const auto names : {SampleNames::keys_of_lines, SampleNames::tensors_of_a_table}) {
    for (const auto* name :
         {"input_ids", "labels", "loss_mask", "returns", "old_values", "packed.labels", ""})
      CHECK(said(name, names) == "no error");
    for (const auto* name : {"position_ids", "cu_seqlens"})
      CHECK(has(said(name, names), name, "not supported"));
    CHECK(has(said("lables", names), "\"lables\"", "did you mean \"labels\"?"));
    CHECK(has(said("retruns", names), "did you mean \"returns\"?"));
    CHECK(has(said("attention_maks", names), "did you mean \"attention_mask\"?"));
  }
  CHECK(said("attention_mask", SampleNames::tensors_of_a_table) == "no error");
  CHECK(has(said("attention_mask", SampleNames::keys_of_lines), "key \"attention_mask\"", "not supported"));
  CHECK(has(said("label", SampleNames::tensors_of_a_table), "has the tensor \"label\""));
}

TEST_CASE("a Dataset is any of them") {
  const Scratch scratch;
  GptDatasetConfig config;
  config.sequence_length = 16;
  const auto open = [&](const Words& words) { return open_dataset(words, config, 8); };
  const Dataset lines = open({scratch.write("a.jsonl", "{\"input_ids\": [1, 2]}")});
  CHECK(lines.size() == 1);
  CHECK_FALSE(lines.is_ordered());
  CHECK(lines.name().ends_with("a.jsonl"));
  const Dataset gpt = open({folder + "ids_uint16"});
  CHECK(gpt.is_ordered());
  CHECK(gpt.size() == 10);
  CHECK(gpt.sample(3).length() == 16);
  CHECK(open({"1", folder + "ids_uint16", "3", folder + "ids_int32"}).size() == 8);
  CHECK(open({folder + "ids_uint16", folder + "ids_int32"}).size() == 20);
  CHECK(Dataset(SafetensorsDataset("f", 1, 2, {1, 2})).size() == 1);
  CHECK(has(user_error([&] { open({"1", "x.jsonl", "1", "y"}); }), "x.jsonl"));
  CHECK(has(user_error([&] { open({"no_such_prefix"}); }), "no_such_prefix.idx"));

  const Ids numbers{0, padding_sample};
  const auto samples = read_samples(lines, numbers);
  CHECK((samples[0] == Sample{{1, 2}, {2, -100}, {1, 0}, {0, 2}}));
  CHECK((samples[1] == Sample{{1, 2}, {-100, -100}, {0, 0}, {0, 2}}));
}

TEST_CASE("token ids outside the vocabulary are refused, ignored labels are not") {
  const auto check = [](Ids ids, Ids labels) {
    return user_error([&] { check_token_ids(make_sample(ids, labels), 6, "d.jsonl", 4); });
  };
  CHECK(check({0, 5}, {-100, 5}) == "no error");
  CHECK(has(check({1, 8}, {1, 1}), "token id 8", "position 1", "sample 4", "d.jsonl", "6 tokens"));
  CHECK(has(check({-1, 1}, {1, 1}), "token id -1", "position 0"));
  CHECK(has(check({6, 1}, {1, 1}), "token id 6"));
  CHECK(has(check({1, 1}, {1, 8}), "label 8", "position 1"));
  CHECK(has(check({1, 1}, {-1, 1}), "label -1", "position 0"));
}

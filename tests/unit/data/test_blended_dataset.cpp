#include "tests/support/doctest.hpp"

#include <nlohmann/json.hpp>

#include "policies/data/blended_dataset.hpp"
#include "tests/unit/data/scratch.hpp"

using namespace mgfl::data;
using namespace mgfl::test;
using Ids = std::vector<std::int64_t>;
using Words = std::vector<std::string>;

namespace {

const std::string folder = MGFL_TEST_DATA "/megatron/";

nlohmann::json fixture() {
  std::ifstream file(folder + "indexed_dataset.json");
  return nlohmann::json::parse(file);
}

void check_indices(const BlendingIndices& found, const nlohmann::json& expected) {
  CHECK(found.dataset_index == expected["dataset_index"].get<std::vector<std::int16_t>>());
  CHECK(found.dataset_sample_index == expected["dataset_sample_index"].get<Ids>());
}

}  // namespace

TEST_CASE("blends draw as Megatron's do") {
  const auto expected = fixture();
  REQUIRE(expected["blending"].size() == 3);
  for (const auto& blend : expected["blending"])
    check_indices(
        build_blending_indices(normalize(blend["weights"].get<std::vector<double>>()), blend["size"]), blend);
  REQUIRE(expected["exhaustive_blending"].size() == 2);
  for (const auto& blend : expected["exhaustive_blending"])
    check_indices(build_exhaustive_blending_indices(blend["sizes"].get<Ids>()), blend);
}

// The sums are numpy's; adding one after the other differs in the last bit.
TEST_CASE("weights are summed as numpy does") {
  std::vector<double> few, many;
  for (int i = 0; i < 21; ++i) few.push_back(0.1 * i + 0.037);
  for (int i = 0; i < 300; ++i) many.push_back(1.0 / (i + 3));
  CHECK(normalize(few)[20] == few[20] / 0x1.5c6e978d4fdf5p+4);
  CHECK(normalize(many)[0] == many[0] / 0x1.3283d93b7feebp+2);
  CHECK(has(user_error([] { normalize(std::vector<double>{1, 0}); }), "0"));
  CHECK(has(user_error([] { normalize(std::vector<double>{1, -2}); }), "-2"));
}

TEST_CASE("sizes leave half a percent to spare") {
  CHECK(samples_per_dataset(std::vector<double>{3, 7}, 1001) ==
        Ids{303, 705});  // ceil(301 x 1.005), ceil(701 x 1.005)
}

TEST_CASE("a blend reads its sets' samples") {
  const Blend blend{{0.3, 0.7}, {folder + "ids_int32", folder + "ids_uint16"}};
  GptDatasetConfig config;
  config.sequence_length = 16;
  config.random_seed = 5;
  const BlendedDataset set = open_blend(blend, config, 40);
  REQUIRE(set.size() == 40);
  CHECK(has(set.name(), "ids_int32", "ids_uint16"));
  const auto expected = fixture()["blending"][0];
  check_indices(set.indices(), expected);
  const auto counts = samples_per_dataset(blend.weights, 40);
  const GptDataset parts[] = {{IndexedDataset(blend.paths[0]), config, counts[0]},
                              {IndexedDataset(blend.paths[1]), config, counts[1]}};
  for (std::int64_t i = 0; i < 40; ++i)
    CHECK((set.sample(i) ==
           parts[expected["dataset_index"][i].get<int>()].sample(expected["dataset_sample_index"][i])));

  const BlendedDataset all = open_blend({{}, blend.paths}, config, {});
  CHECK(all.size() == 20);
  CHECK(has(user_error([&] { open_blend(blend, config, {}); }), "number"));
  std::vector<GptDataset> short_of_samples{{IndexedDataset(blend.paths[0]), config},
                                           {IndexedDataset(blend.paths[1]), config}};
  CHECK(
      has(user_error([&] { BlendedDataset(short_of_samples, blend.weights, 40); }), "12", "10", "ids_int32"));
  CHECK(has(user_error([&] { BlendedDataset(short_of_samples, std::vector<double>{1}, 4); }), "2", "1"));
}

TEST_CASE("--data is read with and without weights") {
  const auto read = [](const Words& words) { return get_blend_from_list(words); };
  CHECK(read({"a"}).paths == Words{"a"});
  CHECK(read({"a", "b"}).paths == Words{"a", "b"});
  CHECK(read({"a", "b"}).weights.empty());
  CHECK(read({"0.3", "a", "7", "b"}).paths == Words{"a", "b"});
  CHECK(read({"0.3", "a", "7", "b"}).weights == std::vector<double>{0.3, 7});
  CHECK(has(user_error([&] { read({}); }), "No data"));
  CHECK(has(user_error([&] { read({"0.3", "a", "7"}); }), "3 words"));
  CHECK(has(user_error([&] { read({"0.3", "a", "b", "7"}); }), "\"b\""));
  CHECK(has(user_error([&] { read({"0", "a"}); }), "\"0\""));
}

#include "tests/support/doctest.hpp"

#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "policies/data/numpy_random.hpp"

using mgfl::data::RandomState;

TEST_CASE("RandomState gives the recorded numbers of numpy's") {
  std::ifstream file(MGFL_TEST_DATA "/megatron/indexed_dataset.json");
  const auto expected = nlohmann::json::parse(file)["numpy_randomstate"];
  RandomState random(expected["seed"].get<std::uint32_t>());
  std::vector<int> values(20);
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(std::span<int>(values));
  CHECK(values == expected["first_shuffle_of_arange_20"].get<std::vector<int>>());
  for (const auto& number : expected["then_uint32"]) CHECK(random.uint32() == number.get<std::uint32_t>());
  for (const auto& number : expected["then_random_sample"])
    CHECK(random.random_sample() == number.get<double>());
}

// Recorded from numpy 2.4.
TEST_CASE("RandomState at the ends of the range of seeds") {
  struct Case {
    std::uint32_t seed;
    std::vector<int> order;
    std::uint32_t next[2];
    double sample[2];
  };
  const Case cases[] = {{0,
                         {2, 8, 4, 9, 1, 6, 7, 3, 0, 5},
                         {1879422756, 1277901399},
                         {0x1.c8967883a12f7p-1, 0x1.ed65349173336p-1}},
                        {4294967295,
                         {6, 9, 5, 1, 8, 0, 7, 4, 2, 3},
                         {2166321787, 2547668722},
                         {0x1.641870c959fbcp-1, 0x1.660e51ba33338p-1}}};
  for (const Case& c : cases) {
    RandomState random(c.seed);
    std::vector<int> values(10);
    std::iota(values.begin(), values.end(), 0);
    random.shuffle(std::span<int>(values));
    CHECK(values == c.order);
    for (const std::uint32_t n : c.next) CHECK(random.uint32() == n);
    for (const double s : c.sample) CHECK(random.random_sample() == s);
  }
}

TEST_CASE("intervals keep to their bound, beyond 32 bits too") {
  RandomState random(1);
  CHECK(random.interval(0) == 0);
  bool beyond = false;
  for (int i = 0; i < 100; ++i) {
    const auto n = random.interval(std::uint64_t{5} << 32);
    CHECK(n <= std::uint64_t{5} << 32);
    beyond = beyond || n > 0xffffffffu;
  }
  CHECK(beyond);
}

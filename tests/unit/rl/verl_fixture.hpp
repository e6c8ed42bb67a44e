/// verl's numbers for a padded batch [rows][time], and ways to lay its rows end to end.
#pragma once

#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "mgfl/tensor/factory.hpp"
#include "policies/rl/advantages.hpp"
#include "policies/rl/losses.hpp"
#include "tests/support/doctest.hpp"

namespace rl_tests {

using mgfl::Tensor;
using nlohmann::json;
using numbers = std::vector<double>;

inline Tensor tensor(const numbers& values) {
  auto result = mgfl::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), result.data_ptr<double>());
  return result;
}

inline numbers values(const Tensor& tensor) {
  const auto flat = tensor.detach().to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

inline Tensor borders(const std::vector<std::int64_t>& lengths) {
  auto result = mgfl::zeros({static_cast<std::int64_t>(lengths.size()) + 1}, at::kInt);
  auto* border = result.data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < lengths.size(); ++i)
    border[i + 1] = border[i] + static_cast<std::int32_t>(lengths[i]);
  return result;
}

/// Chosen rows of the padded batch in a chosen order, each cut to a length: packed sequences.
struct Rows {
  std::vector<std::size_t> row;
  std::vector<std::int64_t> length;

  Tensor pack(const json& matrix) const {
    numbers flat;
    for (std::size_t i = 0; i < row.size(); ++i)
      for (std::int64_t t = 0; t < length[i]; ++t)
        flat.push_back(matrix.at(row[i]).at(static_cast<std::size_t>(t)).get<double>());
    return tensor(flat);
  }
  Tensor cu_seqlens() const { return borders(length); }
  Rows subset(const std::vector<std::size_t>& places) const {
    Rows result;
    for (const auto place : places) {
      result.row.push_back(row[place]);
      result.length.push_back(length[place]);
    }
    return result;
  }
};

/// rl.json has plain responses; rl_observations.json, made by the same functions of verl 0.9.1 with
/// torch 2.11 from another seed, has positions inside responses that are masked out, other groups, clips and
/// discounts.
struct VerlFixture {
  VerlFixture() : VerlFixture("rl.json") {}
  explicit VerlFixture(const std::string& name) {
    std::ifstream file(std::string(MGFL_TEST_DATA) + "/verl/" + name);
    REQUIRE(file);
    data = json::parse(file);
    for (const auto& name_of_group : data["inputs"]["group"]) {
      const auto text = name_of_group.get<std::string>();
      index.push_back(1000 -
                      static_cast<std::int64_t>(number_of.try_emplace(text, number_of.size()).first->second));
    }
  }

  std::size_t batch_size() const { return data["inputs"]["response_mask"].size(); }
  std::size_t time() const { return data["inputs"]["response_mask"][0].size(); }

  /// Rows as they are, padding included.
  Rows padded() const {
    Rows rows{std::vector<std::size_t>(batch_size()),
              std::vector<std::int64_t>(batch_size(), static_cast<std::int64_t>(time()))};
    std::iota(rows.row.begin(), rows.row.end(), std::size_t{0});
    return rows;
  }

  /// Responses alone, without padding.
  Rows unpadded() const {
    auto rows = padded();
    for (std::size_t i = 0; i < rows.row.size(); ++i)
      while (data["inputs"]["response_mask"][i][static_cast<std::size_t>(rows.length[i] - 1)] == 0)
        --rows.length[i];
    return rows;
  }

  Tensor input(const Rows& rows, const char* name) const { return rows.pack(data["inputs"][name]); }

  mgfl::rl::Responses responses(const Rows& rows) const {
    return {input(rows, "token_level_rewards"), input(rows, "response_mask"), rows.cu_seqlens()};
  }

  std::vector<std::int64_t> index_of(const Rows& rows) const {
    std::vector<std::int64_t> result;
    for (const auto row : rows.row) result.push_back(index[row]);
    return result;
  }

  json data;
  std::vector<std::int64_t> index;  // the group of each row, as a number

 private:
  std::map<std::string, std::size_t> number_of;
};

/// verl computes in fp32.
inline double largest_difference(const Tensor& got, const Tensor& expected) {
  REQUIRE(got.numel() == expected.numel());
  const auto a = values(got), b = values(expected);
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

inline constexpr double verl_bound = 1e-6;

}  // namespace rl_tests

/// Adds up losses and metrics over micro-batches and over a group of ranks.
#pragma once

#include <string>
#include <vector>

#include "mgfl/engine/outputs.hpp"
#include "mgfl/parallel/communicator.hpp"

namespace mgfl {

/// Adds one micro-batch's terms. UserError where they are not those of the micro-batches before.
void add_metrics(std::vector<Metric>& metrics, const LossTerms& terms);

namespace detail {

/// Names and aggregations, as one text.
std::string heading_of(const std::vector<Metric>& metrics);
std::vector<Metric> metrics_of(const std::string& heading);

Tensor text_to_numbers(const std::string& text, std::int64_t length);  // int64 [length]
std::string numbers_to_text(const Tensor& numbers);
Tensor hash_and_its_negative(const std::string& text);  // int64 [2]
bool one_hash(const Tensor& largest);

Tensor sums_of(const std::vector<Metric>& metrics);      // fp64 [metrics, 2]: what is summed, counts
Tensor extremes_of(const std::vector<Metric>& metrics);  // fp64 [metrics]: what is maximised
void take_reduced(std::vector<Metric>& metrics, const Tensor& sums, const Tensor& extremes);

[[noreturn]] void throw_different_metrics(const std::string& own);

/// One heading for all ranks: that of those that have any metric. UserError on every rank where these differ.
template <parallel::Communicator C>
std::string agreed_heading(const std::string& own, C& group) {
  auto hashes = hash_and_its_negative(own);
  group.all_reduce(hashes, ReduceOp::max);
  if (one_hash(hashes)) return own;
  auto length = text_to_numbers("", 1).fill_(static_cast<std::int64_t>(own.size()));
  group.all_reduce(length, ReduceOp::max);
  auto numbers = text_to_numbers(own, length.template item<std::int64_t>());
  group.all_reduce(numbers, ReduceOp::max);
  const auto common = numbers_to_text(numbers);
  auto differs = text_to_numbers("", 1).fill_(!own.empty() && own != common ? 1 : 0);
  group.all_reduce(differs, ReduceOp::max);
  if (differs.template item<std::int64_t>() != 0) throw_different_metrics(own);
  return common;
}

}  // namespace detail

/// Reduces every metric over the group by its aggregation; all ranks get the same list. A rank without
/// micro-batches joins with none. UserError on every rank where two report unlike metrics. Collective.
template <parallel::Communicator C>
void reduce_metrics(std::vector<Metric>& metrics, C& group) {
  if (group.size() == 1) return;
  const auto heading = detail::heading_of(metrics);
  const auto agreed = detail::agreed_heading(heading, group);
  if (heading.empty()) metrics = detail::metrics_of(agreed);
  auto sums = detail::sums_of(metrics), extremes = detail::extremes_of(metrics);
  group.all_reduce(sums, ReduceOp::sum);
  group.all_reduce(extremes, ReduceOp::max);
  detail::take_reduced(metrics, sums, extremes);
}

}  // namespace mgfl

#include "mgfl/engine/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mgfl/base/error.hpp"
#include "mgfl/base/hash.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

bool is_extreme(const Metric& metric) {
  return metric.aggregation == MetricAggregation::min || metric.aggregation == MetricAggregation::max;
}

/// Turns a minimum into a maximum and back.
double sign_of(const Metric& metric) { return metric.aggregation == MetricAggregation::min ? -1.0 : 1.0; }

}  // namespace

const Metric& metric_named(const std::vector<Metric>& metrics, const std::string& name) {
  std::vector<std::string> known;
  for (const auto& metric : metrics) {
    if (metric.name == name) return metric;
    known.push_back(metric.name);
  }
  throw UserError(concat("there is no metric \"", name, "\"; the loss reports ", some_of(known, 12), "."));
}

namespace {

void add_metric(std::vector<Metric>& metrics, const LossTerm& term) {
  check_user(term.name.find('\n') == std::string::npos && !term.name.empty(),
             "loss closure: a term is named \"", term.name, "\"; give it a name of one line.");
  check_user(term.sum.defined() && term.sum.numel() == 1, "loss closure: the sum of term \"", term.name,
             "\" has ", term.sum.defined() ? term.sum.numel() : 0, " elements; it must be one number.");
  check_user(std::isfinite(term.count) && term.count >= 0, "loss closure: the count of term \"", term.name,
             "\" is ", term.count, "; it must be a finite number of 0 or more.");
  const double sum = term.sum.detach().to(at::kDouble).item<double>();
  for (auto& metric : metrics) {
    if (metric.name != term.name) continue;
    if (is_extreme(metric) && !std::isnan(sum))  // NaN wins, as between ranks
      metric.sum = sign_of(metric) * std::max(sign_of(metric) * metric.sum, sign_of(metric) * sum);
    else
      metric.sum += sum;
    metric.count += term.count;
    return;
  }
  metrics.push_back({term.name, sum, term.count, term.aggregation, term.is_loss});
}

/// Whether the terms are the ones that earlier micro-batches had.
bool are_the_same(const std::vector<Metric>& metrics, const LossTerms& terms) {
  return std::equal(metrics.begin(), metrics.end(), terms.begin(), terms.end(),
                    [](const Metric& metric, const LossTerm& term) {
                      return metric.name == term.name && metric.aggregation == term.aggregation &&
                             metric.is_loss == term.is_loss;
                    });
}

}  // namespace

void add_metrics(std::vector<Metric>& metrics, const LossTerms& terms) {
  if (!metrics.empty() && !are_the_same(metrics, terms)) {
    std::vector<std::string> before, now;
    for (const auto& metric : metrics) before.push_back(metric.name);
    for (const auto& term : terms) now.push_back(term.name);
    throw UserError(concat("loss closure: a micro-batch reports ", some_of(now, 12),
                           " after others reported ", some_of(before, 12),
                           "; return the same terms, with the same aggregation and is_loss, in every "
                           "micro-batch, with sum 0 and count 0 where there is nothing."));
  }
  for (const auto& term : terms) add_metric(metrics, term);
}

namespace detail {

std::string heading_of(const std::vector<Metric>& metrics) {
  std::string text;
  for (const auto& metric : metrics) {
    text += static_cast<char>('0' + static_cast<int>(metric.aggregation));
    text += metric.is_loss ? '+' : '-';
    text += metric.name;
    text += '\n';
  }
  return text;
}

std::vector<Metric> metrics_of(const std::string& heading) {
  std::vector<Metric> metrics;
  for (std::size_t begin = 0; begin < heading.size();) {
    const auto end = heading.find('\n', begin);
    auto& metric = metrics.emplace_back();
    metric.aggregation = static_cast<MetricAggregation>(heading[begin] - '0');
    metric.is_loss = heading[begin + 1] == '+';
    metric.name = heading.substr(begin + 2, end - begin - 2);
    if (is_extreme(metric)) metric.sum = -sign_of(metric) * infinity;
    begin = end + 1;
  }
  return metrics;
}

Tensor text_to_numbers(const std::string& text, std::int64_t length) {
  auto numbers = zeros({length}, at::kLong);
  for (std::size_t i = 0; i < text.size(); ++i)
    numbers.data_ptr<std::int64_t>()[i] = static_cast<unsigned char>(text[i]);
  return numbers;
}

std::string numbers_to_text(const Tensor& numbers) {
  std::string text;
  for (std::int64_t i = 0; i < numbers.numel(); ++i)
    text += static_cast<char>(numbers.const_data_ptr<std::int64_t>()[i]);
  return text;
}

Tensor hash_and_its_negative(const std::string& text) {
  auto both = zeros({2}, at::kLong);
  both.data_ptr<std::int64_t>()[0] = static_cast<std::int64_t>(fnv1a(text) >> 1);
  both.data_ptr<std::int64_t>()[1] = -both.data_ptr<std::int64_t>()[0];
  return both;
}

bool one_hash(const Tensor& largest) {
  return largest.const_data_ptr<std::int64_t>()[0] == -largest.const_data_ptr<std::int64_t>()[1];
}

Tensor sums_of(const std::vector<Metric>& metrics) {
  auto sums = zeros({static_cast<std::int64_t>(metrics.size()), 2}, at::kDouble);
  auto* row = sums.data_ptr<double>();
  for (const auto& metric : metrics) {
    row[0] = is_extreme(metric) ? 0.0 : metric.sum;
    row[1] = metric.count;
    row += 2;
  }
  return sums;
}

Tensor extremes_of(const std::vector<Metric>& metrics) {
  auto extremes = zeros({static_cast<std::int64_t>(metrics.size())}, at::kDouble);
  for (std::size_t i = 0; i < metrics.size(); ++i)
    if (is_extreme(metrics[i])) extremes.data_ptr<double>()[i] = sign_of(metrics[i]) * metrics[i].sum;
  return extremes;
}

void take_reduced(std::vector<Metric>& metrics, const Tensor& sums, const Tensor& extremes) {
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    auto& metric = metrics[i];
    metric.count = sums.const_data_ptr<double>()[2 * i + 1];
    metric.sum = is_extreme(metric) ? sign_of(metric) * extremes.const_data_ptr<double>()[i]
                                    : sums.const_data_ptr<double>()[2 * i];
  }
}

void throw_different_metrics(const std::string& own) {
  std::vector<std::string> names;
  for (const auto& metric : metrics_of(own)) names.push_back(metric.name);
  throw UserError(concat("loss closure: data-parallel ranks report unlike terms; one has ",
                         some_of(names, 12), ". Every rank must report the same ones in the same order."));
}

}  // namespace detail

}  // namespace mgfl

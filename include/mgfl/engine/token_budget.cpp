#include "mgfl/engine/token_budget.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>

#include "mgfl/base/error.hpp"

namespace mgfl {

namespace {

/// What is dealt as one: a sequence, or a group of them.
struct Item {
  std::vector<std::int64_t> sequences;
  std::int64_t tokens = 0;
  double cost = 0;
};

struct Bin {
  std::vector<std::size_t> items;
  std::int64_t tokens = 0;
  double cost = 0;

  void add(std::size_t item, const std::vector<Item>& all) {
    items.push_back(item);
    tokens += all[item].tokens;
    cost += all[item].cost;
  }
  void remove(std::size_t place, const std::vector<Item>& all) {
    tokens -= all[items[place]].tokens;
    cost -= all[items[place]].cost;
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(place));
  }
};

using Bins = std::vector<Bin>;

std::vector<Item> items_of(std::span<const std::int64_t> lengths, const TokenBudget& budget,
                           std::span<const std::int64_t> groups) {
  check_user(groups.empty() || groups.size() == lengths.size(), "token budget: there are ", groups.size(),
             " group numbers for ", lengths.size(), " sequences.");
  std::unordered_map<std::int64_t, std::size_t> place;
  std::vector<Item> items;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    check_user(lengths[s] >= 0 && lengths[s] <= budget.max_tokens, "token budget: sequence ", s, " has ",
               lengths[s], " tokens, the cap per micro-batch is ", budget.max_tokens,
               "; raise max_tokens_per_micro_batch or shorten the sequence.");
    std::size_t item = items.size();
    if (!groups.empty()) item = place.try_emplace(groups[s], items.size()).first->second;
    if (item == items.size()) items.emplace_back();
    items[item].sequences.push_back(static_cast<std::int64_t>(s));
    items[item].tokens += lengths[s];
    items[item].cost += sequence_cost(lengths[s], budget);
    check_user(items[item].tokens <= budget.max_tokens, "token budget: group ",
               groups.empty() ? 0 : groups[s], " must stay in one micro-batch and has ", items[item].tokens,
               " tokens up to sequence ", s, ", the cap per micro-batch is ", budget.max_tokens,
               "; raise the cap or make groups smaller.");
  }
  return items;
}

/// Largest first; equal ones in input order.
template <class Key>
std::vector<std::size_t> descending(const std::vector<Item>& items, Key key) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return key(items[a]) > key(items[b]); });
  return order;
}

/// Best fit decreasing: the fullest bin that an item still fits in. Needs few bins: at most 11/9 of the least
/// number, and one.
Bins fewest_bins(const std::vector<Item>& items, std::int64_t max_tokens) {
  Bins bins;
  std::multimap<std::int64_t, std::size_t> by_room;  // room left -> bin
  for (const auto item : descending(items, [](const Item& i) { return i.tokens; })) {
    auto fit = by_room.lower_bound(items[item].tokens);
    std::size_t bin = bins.size();
    if (fit == by_room.end())
      bins.emplace_back();
    else
      bin = by_room.extract(fit).mapped();
    bins[bin].add(item, items);
    by_room.emplace(max_tokens - bins[bin].tokens, bin);
  }
  return bins;
}

/// The costliest item first, to the cheapest bin that has room for it; no bins where one has room nowhere.
Bins cheapest_first(const std::vector<Item>& items, std::int64_t max_tokens, std::size_t count) {
  Bins bins(count);
  for (const auto item : descending(items, [](const Item& i) { return i.cost; })) {
    Bin* cheapest = nullptr;
    for (auto& bin : bins)
      if (bin.tokens + items[item].tokens <= max_tokens && (!cheapest || bin.cost < cheapest->cost))
        cheapest = &bin;
    if (!cheapest) return {};
    cheapest->add(item, items);
  }
  return bins;
}

/// An item of `from` that goes to `to`, in exchange for one of that bin or for nothing.
struct Exchange {
  static constexpr std::size_t nothing = static_cast<std::size_t>(-1);
  std::size_t to = nothing, item = nothing, other = nothing;  // a bin and places in the two bins
  double costlier;                                            // of the two bins afterwards
};

/// The exchange with one of the cheapest bins after which the costlier of the two is cheapest. A few bins are
/// enough: more find the same to the third digit, and take a time that grows with the square of the batch.
Exchange best_exchange(const Bins& bins, std::size_t from, const std::vector<Item>& items,
                       std::int64_t max_tokens) {
  constexpr std::size_t most_targets = 32;
  std::vector<std::size_t> targets(bins.size());
  std::iota(targets.begin(), targets.end(), std::size_t{0});
  const auto last = targets.begin() + static_cast<std::ptrdiff_t>(std::min(targets.size(), most_targets));
  std::partial_sort(targets.begin(), last, targets.end(), [&](std::size_t a, std::size_t b) {
    return bins[a].cost != bins[b].cost ? bins[a].cost < bins[b].cost : a < b;
  });
  targets.erase(last, targets.end());

  const auto& source = bins[from];
  Exchange best{.costlier = source.cost};
  for (const auto to : targets) {
    const auto& target = bins[to];
    // Half of the difference is the most that an exchange can gain.
    if (to == from || (source.cost + target.cost) / 2 >= best.costlier) break;
    const auto consider = [&](std::size_t i, std::size_t other, double cost, std::int64_t tokens) {
      const double costlier = std::max(source.cost - cost, target.cost + cost);
      if (costlier < best.costlier && target.tokens + tokens <= max_tokens &&
          source.tokens - tokens <= max_tokens)
        best = {to, i, other, costlier};
    };
    for (std::size_t i = 0; i < source.items.size(); ++i) {
      const auto& item = items[source.items[i]];
      consider(i, Exchange::nothing, item.cost, item.tokens);
      for (std::size_t j = 0; j < target.items.size(); ++j) {
        const auto& other = items[target.items[j]];
        consider(i, j, item.cost - other.cost, item.tokens - other.tokens);
      }
    }
  }
  return best;
}

/// Exchanges items of the costliest bins until none gets cheaper.
void balance(Bins& bins, const std::vector<Item>& items, std::int64_t max_tokens) {
  std::vector<bool> settled(bins.size());
  for (std::size_t round = 0; round < 4 * bins.size(); ++round) {
    std::size_t from = bins.size();
    for (std::size_t b = 0; b < bins.size(); ++b)
      if (!settled[b] && (from == bins.size() || bins[b].cost > bins[from].cost)) from = b;
    if (from == bins.size()) return;
    const auto exchange = best_exchange(bins, from, items, max_tokens);
    if (exchange.to == Exchange::nothing) {
      settled[from] = true;
      continue;
    }
    auto &source = bins[from], &target = bins[exchange.to];
    const auto item = source.items[exchange.item];
    source.remove(exchange.item, items);
    if (exchange.other != Exchange::nothing) {
      source.add(target.items[exchange.other], items);
      target.remove(exchange.other, items);
    }
    target.add(item, items);
    settled[exchange.to] = false;
  }
}

/// As many bins as the ranks need together: the fewest per rank that a packing was found for, or the number
/// asked for where that is more.
Bins packed_bins(const std::vector<Item>& items, const TokenBudget& budget) {
  const auto round_up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; };
  const auto unit = budget.data_parallel_size * budget.multiple_of;
  const auto bins_for = [&](std::int64_t bins) {
    return static_cast<std::size_t>(round_up(std::max<std::int64_t>(bins, 1), unit));
  };
  std::int64_t tokens = 0;
  for (const auto& item : items) tokens += item.tokens;
  auto fewest = fewest_bins(items, budget.max_tokens);
  const auto enough = bins_for(static_cast<std::int64_t>(fewest.size()));
  auto count = bins_for(round_up(tokens, budget.max_tokens) / budget.max_tokens);
  auto bins = cheapest_first(items, budget.max_tokens, count);
  while (bins.empty() && count < enough)
    bins = cheapest_first(items, budget.max_tokens, count += static_cast<std::size_t>(unit));
  if (bins.empty()) bins = std::move(fewest);

  // The ranks agree on a number, so a rank must be able to have it, even where dealing to more bins finds no
  // room.
  const auto asked = bins_for(budget.min_micro_batches * budget.data_parallel_size);
  if (asked > count) {
    count = asked;
    if (auto spread = cheapest_first(items, budget.max_tokens, count); !spread.empty())
      bins = std::move(spread);
  }
  bins.resize(count);
  balance(bins, items, budget.max_tokens);
  return bins;
}

}  // namespace

double sequence_cost(std::int64_t length, const TokenBudget& budget) {
  const auto n = static_cast<double>(length);
  return budget.linear_cost * n + n * n;
}

std::vector<MicroBatchIndices> partition_by_token_budget(std::span<const std::int64_t> lengths,
                                                         const TokenBudget& budget,
                                                         std::span<const std::int64_t> groups) {
  const auto check_positive = [](std::int64_t value, const char* name) {
    check_user(value > 0, "token budget: ", name, " is ", value, "; it must be at least 1.");
  };
  check_user(budget.max_tokens > 0 && budget.max_tokens <= std::numeric_limits<std::int32_t>::max(),
             "token budget: max_tokens is ", budget.max_tokens, "; it must be from 1 to 2147483647.");
  check_positive(budget.data_parallel_size, "data_parallel_size");
  check_positive(budget.multiple_of, "multiple_of");
  check_positive(budget.min_micro_batches, "min_micro_batches");
  check_user(budget.linear_cost >= 0 && std::isfinite(budget.linear_cost), "token budget: linear_cost is ",
             budget.linear_cost, "; give 6 x hidden size, or 0 to count squares of lengths alone.");

  const auto items = items_of(lengths, budget, groups);
  auto bins = packed_bins(items, budget);
  std::stable_sort(bins.begin(), bins.end(), [](const Bin& a, const Bin& b) { return a.cost > b.cost; });

  // Bins of like cost go to the ranks in one round, the costliest to the rank that has least so far.
  const auto ranks = static_cast<std::size_t>(budget.data_parallel_size), rounds = bins.size() / ranks;
  std::vector<MicroBatchIndices> result(ranks, MicroBatchIndices(rounds));
  std::vector<double> cost_of_rank(ranks);
  std::vector<std::size_t> order(ranks);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t round = 0; round < rounds; ++round) {
    // 0, 1, 2, 3, 4 costliest first: places 2, 3, 1, 4, 0, so that the cheapest are at the ends.
    const auto place = round % 2 == 0 ? (rounds - 1) / 2 - round / 2 : (rounds + 1) / 2 + round / 2;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return cost_of_rank[a] < cost_of_rank[b]; });
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto& bin = bins[round * ranks + r];
      auto& micro_batch = result[order[r]][place];
      for (const auto item : bin.items)
        micro_batch.insert(micro_batch.end(), items[item].sequences.begin(), items[item].sequences.end());
      std::sort(micro_batch.begin(), micro_batch.end());
      cost_of_rank[order[r]] += bin.cost;
    }
  }
  return result;
}

std::vector<std::int64_t> inverse_permutation(const MicroBatchIndices& micro_batches) {
  std::vector<std::int64_t> order;
  for (const auto& micro_batch : micro_batches)
    order.insert(order.end(), micro_batch.begin(), micro_batch.end());
  std::vector<std::int64_t> inverse(order.size(), -1);
  for (std::size_t place = 0; place < order.size(); ++place) {
    const auto sequence = order[place];
    check_run(sequence >= 0 && sequence < static_cast<std::int64_t>(order.size()) &&
                  inverse[static_cast<std::size_t>(sequence)] < 0,
              "token budget: the micro-batches are no permutation of 0 to ", order.size(), " - 1.");
    inverse[static_cast<std::size_t>(sequence)] = static_cast<std::int64_t>(place);
  }
  return inverse;
}

}  // namespace mgfl

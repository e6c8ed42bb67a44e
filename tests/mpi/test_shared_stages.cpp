// Collectives through shared memory with threads for ranks, one of which is late after every meeting: what it
// has yet to read must not change, though each of the others spoils its stage as soon as it may.
#include "tests/support/doctest.hpp"

#include "policies/parallel/shared_stages.hpp"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "mgfl/tensor/lean.hpp"

namespace {

using mgfl::ReduceOp;
using mgfl::parallel::detail::SharedStages;

constexpr std::int64_t stage_bytes = 64 * 8;

/// A whole number that tells rank, peer and place.
float number(int rank, int peer, std::int64_t i) {
  return static_cast<float>(1 + rank + 10 * peer + 100 * (i % 1000));
}

std::byte* bytes_of(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

/// Calls rank(r, stages, meet) in a thread for each rank, which is late where r is `late`.
template <class F>
void as_ranks(int size, int late, F&& rank) {
  std::vector<std::byte*> stages;
  std::vector<std::vector<double>> memory(static_cast<std::size_t>(size));
  for (auto& stage : memory) {
    stage.resize(stage_bytes / sizeof(double) + 8);
    void* place = stage.data();
    std::size_t room = stage.size() * sizeof(double);
    stages.push_back(static_cast<std::byte*>(std::align(64, stage_bytes, place, room)));
  }
  std::barrier together(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      const SharedStages shared(stages, stage_bytes, r);
      rank(r, shared, [&] {
        together.arrive_and_wait();
        if (r == late) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      });
      std::memset(stages[static_cast<std::size_t>(r)], 0x5a, stage_bytes);
    });
  for (auto& thread : threads) thread.join();
}

template <class F>
void for_each_case(F&& run) {
  for (const int size : {2, 3, 5})
    for (int late = 0; late < size; ++late)
      for (const std::int64_t n : {1, 16, 17, 101, 307}) {
        CAPTURE(size);
        CAPTURE(late);
        CAPTURE(n);
        run(size, late, n);
      }
}

}  // namespace

TEST_CASE("gather of unlike lengths, none of one rank") {
  for_each_case([](int size, int late, std::int64_t n) {
    std::vector<std::int64_t> bytes;
    std::vector<float> expected;
    for (int r = 0; r < size; ++r) {
      const std::int64_t length = r == 1 ? 0 : n + 7 * r;
      bytes.push_back(length * 4);
      for (std::int64_t i = 0; i < length; ++i) expected.push_back(number(r, 0, i));
    }
    std::vector<std::vector<float>> results(static_cast<std::size_t>(size));
    as_ranks(size, late, [&](int r, const SharedStages& stages, auto meet) {
      auto& all = results[static_cast<std::size_t>(r)];
      for (const float value : expected) all.push_back((static_cast<int>(value) - 1) % 10 == r ? value : 0);
      stages.gather(bytes_of(all), bytes, meet);
    });
    for (const auto& all : results) CHECK(all == expected);
  });
}

TEST_CASE("scatter of unlike lengths") {
  for_each_case([](int size, int late, std::int64_t n) {
    const auto length = [&](int from, int to) {
      return from == to || (from + to) % 4 == 3 ? 0 : n + from + 3 * to;
    };
    std::int64_t most = 0;
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to) most = std::max(most, length(from, to));
    std::vector<std::vector<float>> results(static_cast<std::size_t>(size)), expected = results;
    as_ranks(size, late, [&](int r, const SharedStages& stages, auto meet) {
      const auto i = static_cast<std::size_t>(r);
      std::vector<float> out;
      std::vector<std::int64_t> out_bytes, in_bytes;
      for (int other = 0; other < size; ++other) {
        out_bytes.push_back(length(r, other) * 4);
        in_bytes.push_back(length(other, r) * 4);
        for (std::int64_t k = 0; k < length(r, other); ++k) out.push_back(number(r, other, k));
        for (std::int64_t k = 0; k < length(other, r); ++k) expected[i].push_back(number(other, r, k));
      }
      results[i].resize(expected[i].size());
      stages.scatter(bytes_of(out), out_bytes, bytes_of(results[i]), in_bytes, most * 4, meet);
    });
    for (std::size_t r = 0; r < results.size(); ++r) CHECK(results[r] == expected[r]);
  });
}

TEST_CASE("reduce_scatter of unlike lengths, and all_reduce") {
  for_each_case([](int size, int late, std::int64_t n) {
    std::vector<std::int64_t> elements;
    for (int r = 0; r < size; ++r) elements.push_back(r == 1 ? 0 : n + r);
    std::vector<float> sums;
    for (const std::int64_t count : elements)
      for (std::int64_t k = 0; k < count; ++k) {
        const auto i = static_cast<std::int64_t>(sums.size());
        float sum = 0;
        for (int r = 0; r < size; ++r) sum += number(r, 0, i);
        sums.push_back(sum);
      }
    std::vector<std::vector<float>> parts(static_cast<std::size_t>(size)), wholes = parts;
    as_ranks(size, late, [&](int r, const SharedStages& stages, auto meet) {
      const auto i = static_cast<std::size_t>(r);
      std::vector<float> whole;
      for (std::int64_t k = 0; k < static_cast<std::int64_t>(sums.size()); ++k)
        whole.push_back(number(r, 0, k));
      parts[i].resize(static_cast<std::size_t>(elements[i]));
      stages.reduce_scatter(bytes_of(whole), elements, bytes_of(parts[i]), at::kFloat, ReduceOp::sum, meet);
      wholes[i] = whole;
      stages.all_reduce(bytes_of(wholes[i]), static_cast<std::int64_t>(whole.size()), at::kFloat,
                        ReduceOp::sum, meet);
    });
    std::vector<float> joined;
    for (const auto& part : parts) joined.insert(joined.end(), part.begin(), part.end());
    CHECK(joined == sums);
    for (const auto& whole : wholes) CHECK(whole == sums);
  });
}

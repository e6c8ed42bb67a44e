/// The random numbers of numpy's legacy RandomState, from which Megatron's data order comes.
// Mirrors numpy.random.RandomState: its MT19937 stream, random_sample and the shuffle of one-dimensional
// arrays.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace mgfl::data {

/// Gives, number for number, what `numpy.random.RandomState(seed)` gives.
class RandomState {
 public:
  /// numpy seeds MT19937 as std::mt19937 does.
  explicit RandomState(std::uint32_t seed) : engine_(seed) {}
  /// A stream of its own for each set of words; numpy has no counterpart.
  explicit RandomState(std::seed_seq& words) : engine_(words) {}

  /// The next 32 random bits.
  std::uint32_t uint32() { return static_cast<std::uint32_t>(engine_()); }

  /// A double in [0, 1) of 53 random bits.
  double random_sample();

  /// A whole number in [0, max], both included, by numpy's masked rejection.
  std::uint64_t interval(std::uint64_t max);

  /// Shuffles in place, in numpy's order of swaps.
  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace mgfl::data

/// Compares kernels of the x86 set with the originals, with themselves again, and over numbers of threads.
#pragma once

#include "mgfl/override/dispatch.hpp"
#include "tests/unit/kernels/agreement.hpp"

namespace x86_tests {

using namespace kernel_tests;
namespace targets = mgfl::targets;
using agreement::Case, agreement::Tensors;

template <class Target>
inline constexpr auto x86 = mgfl::implementation<Target, mgfl::vendors::x86>::call;

inline constexpr std::array<Case, 2> cases{
    {{at::kFloat, at::kFloat, 1e-5}, {at::kBFloat16, at::kFloat, 8e-3}}};
/// Dtypes that the x86 kernels hand to the originals.
inline constexpr std::array<Case, 2> handed_over{{{at::kDouble, at::kDouble, 0}, {at::kHalf, at::kFloat, 0}}};

/// run(kernel) makes its inputs from a fixed seed and returns what the kernel wrote.
template <class Target, class Run>
void agrees(Run run, double tolerance, int last_threads = 2) {
  mgfl::set_num_threads(2);
  const Tensors expected = run(original<Target>);
  Tensors first;
  for (const int threads : {2, 1, last_threads}) {
    CAPTURE(threads);
    mgfl::set_num_threads(threads);
    const Tensors got = run(x86<Target>);
    if (first.empty()) first = got;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      const bool wide = got[i].scalar_type() == at::kFloat || got[i].scalar_type() == at::kDouble;
      CHECK((got[i].scalar_type() == expected[i].scalar_type()));
      CHECK(distance(got[i], expected[i]) <= (wide && tolerance > 0 ? 3e-5 : tolerance));
      CHECK(same_bits(got[i], first[i]));
    }
  }
  mgfl::set_num_threads(2);
}

struct Checker {
  template <class Target>
  static constexpr auto kernel = x86<Target>;

  static std::array<Case, 4> cases() {
    return {x86_tests::cases[0], x86_tests::cases[1], handed_over[0], handed_over[1]};
  }

  template <class Target, class Run>
  void agrees(Run run, double tolerance) const {
    x86_tests::agrees<Target>(run, tolerance);
  }
};

}  // namespace x86_tests

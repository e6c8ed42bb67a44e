/// Compares kernels of the cuda set with the originals on CPU tensors, and with themselves again. This folder
/// is compiled twice: for an emulated device, in every build, and for a GPU, in cuda builds (tests/device).
#pragma once

#include "tests/unit/kernels/agreement.hpp"
#include "vendors/cuda/kernels/cross_entropy.hpp"
#include "vendors/cuda/kernels/embedding.hpp"
#include "vendors/cuda/kernels/linear.hpp"
#include "vendors/cuda/kernels/optimizer.hpp"
#include "vendors/cuda/kernels/rms_norm.hpp"
#include "vendors/cuda/kernels/rotary.hpp"
#include "vendors/cuda/kernels/swiglu.hpp"

#ifdef MGFL_TEST_ON_GPU
#include "tests/device/cuda_kernels/gpu.hpp"
#else
#include "tests/unit/cuda_kernels/emulation.hpp"
#endif

namespace cuda_tests {

using namespace kernel_tests;
namespace targets = mgfl::targets;
using agreement::Case, agreement::Tensors;

inline double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 3e-5 : dtype == at::kBFloat16 ? 8e-3 : 1e-3;
}

struct Checker {
  template <class Target>
  static constexpr auto kernel = cuda_tests::kernel<Target>;

  static std::array<Case, 4> cases() {
    return {{{at::kDouble, at::kDouble, tolerance_of(at::kDouble)},
             {at::kFloat, at::kFloat, tolerance_of(at::kFloat)},
             {at::kBFloat16, at::kFloat, tolerance_of(at::kBFloat16)},
             {at::kHalf, at::kFloat, tolerance_of(at::kHalf)}}};
  }

  /// Each output within its own dtype's tolerance; two runs give the same bits.
  template <class Target, class Run>
  void agrees(Run run, double tolerance) const {
    const Tensors expected = run(original<Target>);
    Tensors first;
    for (const int again : {0, 1}) {
      CAPTURE(again);
      prepare_run(again);
      const int before = launches();
      const Tensors got = run(kernel<Target>);
      CHECK(launches() == before + 1);  // no call went to the original
      if (first.empty()) first = got;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        CHECK((got[i].scalar_type() == expected[i].scalar_type()));
        CHECK(distance(got[i], expected[i]) <= (tolerance == 0 ? 0 : tolerance_of(got[i].scalar_type())));
        CHECK(same_bits(got[i], first[i]));
      }
    }
  }
};

}  // namespace cuda_tests

// What the kernel set does with machines and tensors that are not its own.
#include "tests/unit/x86_kernels/support.hpp"

#include "vendors/x86/run.h"
#include "vendors/x86/training/initialize.hpp"

using namespace mgfl;

TEST_CASE("a machine without the instructions is told of, with what to do") {
  CHECK(x86::lacking_instructions(3, true).empty());
  CHECK(x86::lacking_instructions(0, false).empty());  // nothing was compiled, nothing is missed
  CHECK(x86::lacking_instructions(3, false).find("avx512_bf16, which this CPU lacks") != std::string::npos);
  CHECK(x86::lacking_instructions(2, false).find("-DMGFL_X86_ISA=avx2") != std::string::npos);
  CHECK(x86::lacking_instructions(1, false).find("-DMGFL_X86_ISA=none") != std::string::npos);
  CHECK(implementation<targets::compile_dependencies, vendors::x86>::call().empty() ==
        x86::machine_runs_simd());
}

TEST_CASE("tensors outside host memory are the original's") {
  const auto host = empty({3, 8}, at::kFloat), elsewhere = host.to(at::kMeta);
  CHECK(x86::fits(host, at::kFloat));
  CHECK(x86::fits(Tensor(), at::kFloat));
  CHECK(!x86::fits(elsewhere, at::kFloat));
  CHECK(!x86::fits(host, at::kBFloat16));
  CHECK(!x86::fits(host.t(), at::kFloat));
  Tensor activated = empty({3, 4}, at::kFloat).to(at::kMeta);
  implementation<targets::swiglu, vendors::x86>::call(elsewhere, activated);  // a host kernel would crash
  CHECK(activated.is_meta());
}

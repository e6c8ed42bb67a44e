#include "vendors/x86/run.h"

#include <cstdlib>
#include <memory>
#include <new>

#include "mgfl/base/error.hpp"

namespace mgfl::x86 {

bool machine_runs_simd() {
  static const bool runs = [] {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    switch (isa_level) {
      case 1:
        return avx2;
      case 2:
        return avx512;
      case 3:
        return avx512 && __builtin_cpu_supports("avx512bf16");
      default:
        return false;
    }
  }();
  return runs;
}

std::string lacking_instructions(int level, bool runs) {
  if (level == 0 || runs) return {};
  const char* isa = level == 1 ? "avx2" : level == 2 ? "avx512" : "avx512_bf16";
  return concat(
      "the x86 kernels of this build were compiled for ", isa,
      ", which this CPU lacks, so that ATen's kernels run in their place: the same numbers to rounding, "
      "but slower. Build on this machine, or with  -DMGFL_X86_ISA=",
      level == 1 ? "none" : "avx2", "  for all of them.");
}

void* scratch(std::size_t bytes) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static thread_local std::unique_ptr<void, Free> memory;
  static thread_local std::size_t capacity = 0;
  if (bytes > capacity) {
    const std::size_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    memory.reset();
    capacity = 0;
    memory.reset(std::aligned_alloc(4096, rounded));
    if (!memory) throw std::bad_alloc();
    capacity = rounded;
  }
  return memory.get();
}

}  // namespace mgfl::x86

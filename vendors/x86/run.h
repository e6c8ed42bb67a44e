/// Decides whether a call can run in vendors/x86/simd, and runs it there; private to the bodies in kernels/.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "vendors/x86/simd/simd.h"

namespace mgfl::x86 {

/// What simd/ was compiled for: 0 nothing, 1 AVX2, 2 AVX-512, 3 AVX-512 with bf16 products.
inline constexpr int isa_level = MGFL_X86_ISA_LEVEL;
inline constexpr int isa_with_avx512 = 2, isa_with_bf16_products = 3;

/// Whether this machine runs what simd/ was compiled for.
bool machine_runs_simd();

/// What a user should know where simd/ was compiled for `level` and the machine does not run it; else empty.
std::string lacking_instructions(int level, bool runs);

/// Whether a kernel can read the tensor as rows of `dtype` in host memory; an undefined tensor passes.
inline bool fits(const Tensor& t, at::ScalarType dtype) {
  return !t.defined() || (t.is_cpu() && t.scalar_type() == dtype && t.is_contiguous());
}

/// Start of a tensor's memory, null where it is undefined.
template <class T>
const T* in(const Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}
template <class T>
T* out(Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

/// Tensors that a kernel reads or writes as dtype D, and those of dtype M.
struct Operands {
  std::initializer_list<std::reference_wrapper<const Tensor>> of_d, of_m;
};

/// Calls body(D{}) with D = float or bf16, the dtype of the first of `of_d`; false where this machine, a
/// device, a dtype or a layout is not covered: the caller then hands the call to the original.
template <class Body>
bool run(const Operands& operands, Body&& body) {
  if constexpr (isa_level == 0) {
    return false;
  } else {
    const at::ScalarType dtype = operands.of_d.begin()->get().scalar_type();
    if ((dtype != at::kFloat && dtype != at::kBFloat16) || !machine_runs_simd()) return false;
    for (const Tensor& t : operands.of_d)
      if (!fits(t, dtype)) return false;
    for (const Tensor& t : operands.of_m)
      if (!fits(t, at::kFloat)) return false;
    if (dtype == at::kFloat) {
      body(float{});
    } else {
      body(bf16{});
    }
    return true;
  }
}

}  // namespace mgfl::x86

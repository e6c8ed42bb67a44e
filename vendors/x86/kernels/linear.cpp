#include "vendors/x86/kernels/linear.hpp"

#include <type_traits>

#include "vendors/x86/run.h"

namespace mgfl {

namespace {

[[maybe_unused]] constexpr std::int64_t least_size =
    64;  // a narrower product does not repay the packing of its operands

/// Runs an fp32 product here; false where it is ATen's.
template <class Body>
bool run_product(const x86::Operands& operands, [[maybe_unused]] const Tensor& left,
                 [[maybe_unused]] const Tensor& right, [[maybe_unused]] Body&& body) {
  if constexpr (x86::isa_level < x86::isa_with_avx512) {
    return false;
  } else {
    const auto is_large = [](const Tensor& t) { return t.size(0) >= least_size && t.size(1) >= least_size; };
    return left.scalar_type() == at::kFloat && is_large(left) && is_large(right) &&
           x86::run(operands, [&]<class D>(D) {
             if constexpr (std::is_same_v<D, float>) body();
           });
  }
}

}  // namespace

void implementation<targets::linear, vendors::x86>::call(const Tensor& x, const Tensor& w, const Tensor& bias,
                                                         Tensor& y) {
  const bool done = run_product({{x, w, bias, y}, {}}, x, w, [&] {
    if constexpr (x86::isa_level >= x86::isa_with_avx512)
      x86::linear(x86::in<float>(x), x86::in<float>(w), x86::in<float>(bias), x86::out<float>(y), x.size(0),
                  w.size(0), w.size(1), num_threads());
  });
  if (!done) implementation<targets::linear, vendors::original>::call(x, w, bias, y);
}

void implementation<targets::linear_input_grad, vendors::x86>::call(const Tensor& dy, const Tensor& w,
                                                                    Tensor& dx) {
  const bool done = run_product({{dy, w, dx}, {}}, dy, w, [&] {
    if constexpr (x86::isa_level >= x86::isa_with_avx512)
      x86::linear_input_grad(x86::in<float>(dy), x86::in<float>(w), x86::out<float>(dx), dy.size(0),
                             w.size(0), w.size(1), num_threads());
  });
  if (!done) implementation<targets::linear_input_grad, vendors::original>::call(dy, w, dx);
}

void implementation<targets::linear_weight_grad, vendors::x86>::call(const Tensor& dy, const Tensor& x,
                                                                     Tensor& main_grad) {
  bool done = run_product({{dy, x}, {main_grad}}, dy, x, [&] {
    if constexpr (x86::isa_level >= x86::isa_with_avx512)
      x86::weight_grad(x86::in<float>(dy), x86::in<float>(x), x86::out<float>(main_grad), dy.size(0),
                       dy.size(1), x.size(1), num_threads());
  });
  if constexpr (x86::isa_level >= x86::isa_with_bf16_products) {
    done = done || (dy.scalar_type() == at::kBFloat16 && x86::run({{dy, x}, {main_grad}}, [&]<class D>(D) {
                      if constexpr (std::is_same_v<D, x86::bf16>)
                        x86::weight_grad(x86::in<D>(dy), x86::in<D>(x), x86::out<float>(main_grad),
                                         dy.size(0), dy.size(1), x.size(1), num_threads());
                    }));
  }
  if (!done) implementation<targets::linear_weight_grad, vendors::original>::call(dy, x, main_grad);
}

void implementation<targets::bias_grad, vendors::x86>::call(const Tensor& dy, Tensor& main_grad) {
  const bool done = x86::run({{dy}, {main_grad}}, [&]<class D>(D) {
    x86::bias_grad(x86::in<D>(dy), x86::out<float>(main_grad), dy.size(0), dy.size(1), num_threads());
  });
  if (!done) implementation<targets::bias_grad, vendors::original>::call(dy, main_grad);
}

}  // namespace mgfl

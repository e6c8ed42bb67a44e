// Which calls the kernels take, and what becomes of the others.
#include "tests/unit/cuda_kernels/support.hpp"

#include <string>

#include "mgfl/base/error.hpp"
#include "vendors/cuda/run.hpp"
#include "vendors/cuda/training/initialize.hpp"

using namespace cuda_tests;

namespace {

/// A tensor that names a CUDA device; its memory is never touched.
Tensor foreign(std::vector<std::int64_t> shape) {
  c10::Storage storage(c10::Storage::use_byte_size_t{}, 1 << 20,
                       at::DataPtr(reinterpret_cast<void*>(64), at::Device(at::kCUDA, 3)), nullptr, false);
  Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>());
  t.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return t;
}

template <class Call>
std::string run_error(Call call) {
  try {
    call();
  } catch (const mgfl::RunError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("cuda kernels leave layouts and dtypes that they lack to the original") {
  const int before = launches();
  const Tensor columns = Random(1).tensor({6, 5}, at::kFloat).t();  // not contiguous
  Tensor y = mgfl::zeros({5, 3}, at::kFloat), expected = mgfl::zeros({5, 3}, at::kFloat);
  kernel<targets::swiglu>(columns, y);
  original<targets::swiglu>(columns, expected);
  CHECK(same_bits(y, expected));

  const Tensor dy = Random(2).tensor({4, 3}, at::kBFloat16);
  Tensor wide = mgfl::zeros({3}, at::kDouble),
         wide_expected = mgfl::zeros({3}, at::kDouble);  // fp32 is M of bf16
  kernel<targets::bias_grad>(dy, wide);
  original<targets::bias_grad>(dy, wide_expected);
  CHECK(same_bits(wide, wide_expected));
  CHECK(launches() == before);
}

TEST_CASE("cuda kernels whose originals read host memory refuse such tensors") {
  const Tensor ids = integers(std::vector<std::int64_t>{1, 0});
  Tensor out = mgfl::zeros({4, 2}, at::kFloat).t();
  const std::string text = run_error([&] {
    kernel<targets::embedding>(ids, Random(3).tensor({3, 4}, at::kFloat), 0, out);
  });
  CHECK(text.find("kernel embedding: on a GPU it takes contiguous tensors of one dtype") == 0);
  CHECK(text.find("given cpu Float, cpu Float not contiguous, cpu Long.") != std::string::npos);
}

TEST_CASE("cuda kernels name the devices of a call that mixes them") {
  Tensor activated = foreign({2, 3});
  const std::string text = run_error([&] {
    kernel<targets::swiglu>(Random(4).tensor({2, 6}, at::kFloat), activated);
  });
  CHECK(text ==
        "kernel swiglu: the tensors of one call lie on several devices (cpu Float, cuda:3 Float); move them "
        "to one.");
}

TEST_CASE("a program whose cuda kernels have nothing to do says so, with what to do") {
  const std::string no_gpu = mgfl::cuda::idle_kernels("no driver", false);
  CHECK(no_gpu.find("there is no GPU (no driver), so that ATen's kernels compute on the CPU") == 0);
  CHECK(no_gpu.find("-DMGFL_KERNELS=auto") != std::string::npos);
  CHECK(mgfl::cuda::idle_kernels("", false).find("linked with LibTorch's CPU library") != std::string::npos);
  CHECK(mgfl::cuda::idle_kernels("", true).empty());
  CHECK(mgfl::implementation<targets::compile_dependencies, mgfl::vendors::cuda>::call().empty());
}

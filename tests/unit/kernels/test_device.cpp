// The originals that kernel sets for other devices leave to LibTorch must compute where their tensors are.
// LibTorch's meta device stands for any other: it checks shapes, dtypes and devices of every operation, and
// computes nothing. (It lacks the logsumexp of attention's forward pass, which otherwise calls what backward
// calls.)
#include "tests/unit/kernels/support.hpp"

using namespace kernel_tests;
namespace targets = mgfl::targets;

namespace {

Tensor elsewhere(std::vector<std::int64_t> shape, at::ScalarType dtype) {
  return mgfl::zeros(shape, dtype).to(at::TensorOptions().device(at::kMeta).dtype(dtype));
}

}  // namespace

TEST_CASE("linear and attention compute on the device of their tensors") {
  const std::int64_t tokens = 300, hidden = 6, groups = 1, queries = 2, head_dim = 4;
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor x = elsewhere({tokens, hidden}, dtype.d), w = elsewhere({5, hidden}, dtype.d);
    Tensor y = elsewhere({tokens, 5}, dtype.d), dx = elsewhere({tokens, hidden}, dtype.d);
    Tensor w_grad = elsewhere({5, hidden}, dtype.m), b_grad = elsewhere({5}, dtype.m);
    CHECK_NOTHROW(original<targets::linear>(x, w, Tensor(), y));
    CHECK_NOTHROW(original<targets::linear>(x, w, elsewhere({5}, dtype.d), y));
    CHECK_NOTHROW(original<targets::linear_input_grad>(y, w, dx));
    CHECK_NOTHROW(original<targets::linear_weight_grad>(y, x, w_grad));
    CHECK_NOTHROW(original<targets::bias_grad>(y, b_grad));

    const Tensor bounds = integers(std::vector<std::int32_t>{0, 299, 300});
    for (const std::int64_t window : {0, 7}) {
      const mgfl::kernels::AttentionShape shape{{groups, queries, head_dim}, 0.5, window};
      const Tensor qkv = elsewhere({tokens, shape.layout.row_width()}, dtype.d);
      const Tensor out = elsewhere({tokens, queries * head_dim}, dtype.d),
                   lse = elsewhere({queries, tokens}, dtype.m);
      Tensor dqkv = elsewhere({tokens, shape.layout.row_width()}, dtype.d);
      CHECK_NOTHROW(original<targets::attention_backward>(out, qkv, out, lse, bounds, shape, dqkv));
    }
  }
}

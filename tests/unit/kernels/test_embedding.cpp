#include "tests/unit/kernels/support.hpp"

using namespace kernel_tests;
namespace targets = mgfl::targets;

namespace {
constexpr std::int64_t rows = 6, hidden = 130, first_row = 4;
const std::vector<std::int64_t> some_ids{4, 9, 3, 10, 5, 4, 4, -1, 9};  // held here: 4 .. 9
}  // namespace

TEST_CASE("embedding looks up the rows held here and leaves zeros elsewhere") {
  Random random(15);
  for (const auto& dtype : dtype_cases) {
    const Tensor w = random.tensor({rows, hidden}, dtype.d);
    const std::int64_t tokens = some_ids.size();
    Tensor out = random.tensor({tokens, hidden}, dtype.d);
    original<targets::embedding>(integers(some_ids), w, first_row, out);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t row = some_ids[t] - first_row;
      const bool held = row >= 0 && row < rows;
      CHECK(same_bits(out[t], held ? w[row] : mgfl::zeros({hidden}, dtype.d)));
    }
  }
}

TEST_CASE("embedding_backward adds in ascending order of tokens, at any number of threads") {
  Random random(16);
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 500; ++i) ids.push_back(random.below(12));
  for (const auto& dtype : dtype_cases) {
    CAPTURE(c10::toString(dtype.d));
    const Tensor dout = random.tensor({500, hidden}, dtype.d), start = random.tensor({rows, hidden}, dtype.m);
    Tensor expected = start.clone();
    for (std::int64_t t = 0; t < 500; ++t) {
      const std::int64_t row = ids[t] - first_row;
      if (row >= 0 && row < rows) expected[row].add_(dout[t].to(dtype.m));
    }
    const int threads = mgfl::num_threads();
    for (const int count : {1, 2}) {
      mgfl::set_num_threads(count);
      Tensor main_grad = start.clone();
      original<targets::embedding_backward>(integers(ids), dout, first_row, main_grad);
      CHECK(same_bits(main_grad, expected));
    }
    mgfl::set_num_threads(threads);
  }
}

TEST_CASE("row ranges of an embedding add up to the whole") {
  Random random(17);
  const Tensor w = random.tensor({12, hidden}, at::kDouble), dout = random.tensor({9, hidden}, at::kDouble);
  const Tensor ids = integers(std::vector<std::int64_t>{0, 5, 6, 11, 6, 3, 0, 0, 7});
  Tensor whole = mgfl::empty({9, hidden}, at::kDouble), grad = mgfl::zeros({12, hidden}, at::kDouble);
  original<targets::embedding>(ids, w, 0, whole);
  original<targets::embedding_backward>(ids, dout, 0, grad);
  Tensor sum = mgfl::zeros({9, hidden}, at::kDouble);
  for (const std::int64_t first : {0, 6}) {
    Tensor part = mgfl::empty({9, hidden}, at::kDouble), part_grad = mgfl::zeros({6, hidden}, at::kDouble);
    original<targets::embedding>(ids, w.narrow(0, first, 6), first, part);
    original<targets::embedding_backward>(ids, dout, first, part_grad);
    sum.add_(part);
    CHECK(same_bits(part_grad, grad.narrow(0, first, 6)));
  }
  CHECK(same_bits(sum, whole));
}

// The stream of communications and the scale of gradients: every vendor's body beside the original's.
#include "tests/support/doctest.hpp"

#include <c10/core/Stream.h>

#include <optional>

#include "mgfl/tensor/factory.hpp"
#include "policies/distributed/param_and_grad_buffer.hpp"
#include "vendors/metax/distributed/param_and_grad_buffer.hpp"
#include "vendors/musa/distributed/param_and_grad_buffer.hpp"
#include "vendors/npu/distributed/param_and_grad_buffer.hpp"

using namespace mgfl;

namespace {

c10::Stream stream(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, 0), id);
}

template <class Vendor>
c10::Stream chosen(bool capturing) {
  return implementation<targets::get_communication_stream, Vendor>::call({stream(3), stream(8), capturing});
}

/// Gradients 1, 2, 4 after `Vendor` was asked for `factor` over 4 ranks, and by what they are to be reduced.
template <class Vendor>
std::pair<Tensor, ReduceOp> prepared(std::optional<double> factor) {
  Tensor grads = zeros({3}, at::kFloat);
  for (int i = 0; i < 3; ++i) grads[i].fill_(1 << i);
  const ReduceOp op = implementation<targets::gradient_reduce_preprocessing, Vendor>::call(grads, factor, 4);
  return {grads, op};
}

bool holds(const Tensor& grads, double first) {
  for (int i = 0; i < 3; ++i)
    if (grads[i].item<double>() != first * (1 << i)) return false;
  return true;
}

}  // namespace

TEST_CASE(
    "the original communicates on the group's own stream, metax on the caller's while a graph is captured") {
  for (const bool capturing : {false, true}) CHECK(chosen<vendors::original>(capturing) == stream(3));
  CHECK(chosen<vendors::metax>(false) == stream(3));
  CHECK(chosen<vendors::metax>(true) == stream(8));
}

TEST_CASE("gradients without a factor are summed as they are, by every vendor") {
  const auto check = [&]<class Vendor>(Vendor) {
    const auto [grads, op] = prepared<Vendor>(std::nullopt);
    CHECK(op == ReduceOp::sum);
    CHECK(holds(grads, 1));
  };
  check(vendors::original());
  check(vendors::npu());
  check(vendors::musa());
}

TEST_CASE("an average is the original's reduction, and npu's and musa's scale before a sum") {
  const auto [original, op] = prepared<vendors::original>(0.25);
  CHECK(op == ReduceOp::avg);
  CHECK(holds(original, 1));
  const auto check = [&]<class Vendor>(Vendor) {
    const auto [grads, by] = prepared<Vendor>(0.25);
    CHECK(by == ReduceOp::sum);
    CHECK(holds(grads, 0.25));  // four ranks of it sum to the average
  };
  check(vendors::npu());
  check(vendors::musa());
}

TEST_CASE("any other factor scales before a sum") {
  const auto check = [&]<class Vendor>(Vendor) {
    const auto [grads, op] = prepared<Vendor>(0.5);
    CHECK(op == ReduceOp::sum);
    CHECK(holds(grads, 0.5));
  };
  check(vendors::original());
  check(vendors::npu());
  check(vendors::musa());
}

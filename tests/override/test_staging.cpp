// Collectives on the device that a group names, with a test's chip.
#include "tests/support/doctest.hpp"

#include <limits>
#include <vector>

#include "mgfl/tensor/factory.hpp"
#include "policies/parallel/self.hpp"
#include "tests/override/chip.hpp"
#include "tests/override/ranks.hpp"
#include "tests/override/scaled_grads.hpp"
#include "vendors/default/distributed/finalize_model_grads.hpp"
#include "vendors/default/optimizer/clip_grads.hpp"
#include "vendors/default/optimizer/unscale_main_grads.hpp"
#include "vendors/musa/optimizer/clip_grads.hpp"

using mgfl::ReduceOp;
using mgfl::Tensor;
using mgfl_test::chip;

namespace {

/// Records what it is handed; plays one rank of two, the other one brings `other` in every element.
struct Quiet {
  double other = 0;
  c10::DeviceType device{};
  at::ScalarType dtype{};
  bool contiguous = false;
  std::int64_t elements = -1;
  int calls = 0;

  int rank() const { return 0; }
  int size() const { return 2; }
  void all_reduce(Tensor& tensor, ReduceOp op) {
    ++calls;
    device = tensor.device().type();
    dtype = tensor.scalar_type();
    contiguous = tensor.is_contiguous();
    elements = tensor.numel();
    Tensor host = tensor.to(at::kCPU);
    tensor.copy_(op == ReduceOp::sum ? host.add(other) : host.clamp_min(other));
  }
  void broadcast(Tensor&, int) {}
  void all_gather(const Tensor&, Tensor&) {}
  void barrier() {}
};

/// The same, and says where it wants tensors.
struct Outspoken : Quiet {
  Outspoken(c10::DeviceType wanted_device, double others) : wanted(wanted_device) { other = others; }
  c10::DeviceType wanted;
  c10::DeviceType device_type_for_comm() const { return wanted; }
};
static_assert(!mgfl::parallel::SaysDeviceTypeForComm<Quiet>);
static_assert(mgfl::parallel::SaysDeviceTypeForComm<Outspoken>);
static_assert(!mgfl::parallel::SaysDeviceTypeForComm<mgfl::parallel::communicator_archetype>);

Tensor numbers(std::initializer_list<double> list, at::ScalarType dtype) {
  Tensor wide = mgfl::empty({static_cast<std::int64_t>(list.size())}, at::kDouble);
  std::copy(list.begin(), list.end(), wide.mutable_data_ptr<double>());
  return wide.to(dtype);
}

template <class V, class C>
double norm(const std::vector<Tensor>& grads, double p, mgfl::parallel::GroupList<C> groups) {
  return mgfl::implementation<mgfl::targets::get_grad_norm_fp32, V>::template call<C>(grads, p, groups);
}

void check_scalar(const Quiet& group, c10::DeviceType device) {
  CHECK(group.calls == 1);
  CHECK(group.device == device);
  CHECK((group.dtype == at::kDouble));
  CHECK(group.contiguous);
  CHECK(group.elements == 1);
}

}  // namespace

TEST_CASE("a chip's tensor is not the CPU's, and comes back whole") {
  const Tensor host = numbers({1, -2, 3}, at::kFloat), there = mgfl_test::to_chip(host);
  CHECK(there.device().type() == chip);
  CHECK(there.const_data_ptr() != host.const_data_ptr());
  CHECK(there.to(at::kCPU).equal(host));
}

TEST_CASE("groups that say nothing get the tensor where it lies; Self says the CPU") {
  using mgfl::parallel::get_device_type_for_comm;
  CHECK(get_device_type_for_comm(Quiet{}, chip) == chip);
  CHECK(get_device_type_for_comm(Quiet{}, at::kCPU) == at::kCPU);
  CHECK(get_device_type_for_comm(Outspoken(at::kCPU, 0), chip) == at::kCPU);
  CHECK(get_device_type_for_comm(mgfl::parallel::Self{}, chip) == at::kCPU);
}

TEST_CASE("a view in pieces is staged in one piece, and comes back into its place") {
  Tensor whole = numbers({1, 2, 3, 4, 5, 6}, at::kFloat).reshape({2, 3}), view = whole.narrow(1, 0, 2);
  Quiet columns{10};
  mgfl::parallel::all_reduce_staged(view, mgfl::ReduceOp::sum, columns);
  CHECK(columns.contiguous);
  CHECK(columns.elements == 4);
  CHECK(whole.equal(numbers({11, 12, 3, 14, 15, 6}, at::kFloat).reshape({2, 3})));
  // Transposed: dense, but not in the order of its indices.
  Tensor square = numbers({1, 2, 3, 4}, at::kFloat).reshape({2, 2}), transposed = square.t();
  Quiet group{1};
  mgfl::parallel::all_reduce_staged(transposed, mgfl::ReduceOp::sum, group);
  CHECK(group.contiguous);
  CHECK(square.equal(numbers({2, 3, 4, 5}, at::kFloat).reshape({2, 2})));
}

TEST_CASE("the norm's scalar goes to the device of each group of one list, and comes back") {
  const std::vector<Tensor> grads = {numbers({2, 2, 2, 2}, at::kBFloat16)};  // 16
  Outspoken on_chip(chip, 9), on_cpu(at::kCPU, 24), on_chip_again(chip, 51);
  CHECK(norm<mgfl::vendors::default_, Outspoken>(grads, 2.0, {&on_chip, &on_cpu, &on_chip_again}) == 10.0);
  check_scalar(on_chip, chip);
  check_scalar(on_cpu, at::kCPU);
  check_scalar(on_chip_again, chip);

  Outspoken largest(chip, 7);
  CHECK(norm<mgfl::vendors::default_, Outspoken>(grads, std::numeric_limits<double>::infinity(), largest) ==
        7.0);
  Outspoken musa(chip, 9);
  CHECK(norm<mgfl::vendors::musa, Outspoken>(grads, 2.0, musa) == 5.0);
  check_scalar(musa, chip);

  Quiet quiet{9};
  CHECK(norm<mgfl::vendors::default_, Quiet>(grads, 2.0, quiet) == 5.0);
  check_scalar(quiet, at::kCPU);
  Outspoken not_asked(chip, 9);  // the original leaves its scalar with the gradients
  CHECK(norm<mgfl::vendors::original, Outspoken>(grads, 2.0, not_asked) == 5.0);
  check_scalar(not_asked, at::kCPU);
}

TEST_CASE("found_inf goes to the device of each group of one list, and comes back") {
  using Grads = mgfl_test::ScaledGrads<Outspoken>;
  Outspoken on_chip(chip, 0), on_cpu(at::kCPU, 0), finds_one(chip, 1), last(at::kCPU, 0);
  Grads healthy({numbers({8, 4}, at::kFloat)}, 4.0, {&on_chip, &on_cpu});
  CHECK(!mgfl_test::unscale<mgfl::vendors::default_>(healthy));
  check_scalar(on_chip, chip);
  check_scalar(on_cpu, at::kCPU);
  Grads warned({numbers({8, 4}, at::kFloat)}, 4.0, {&finds_one, &last});
  CHECK(mgfl_test::unscale<mgfl::vendors::default_>(warned));
  check_scalar(finds_one, chip);
  check_scalar(last, at::kCPU);
  const double bad = std::numeric_limits<double>::infinity();
  Outspoken tells(chip, 0);
  Grads sick({numbers({8, bad}, at::kFloat)}, 4.0, {&tells});
  CHECK(mgfl_test::unscale<mgfl::vendors::default_>(sick));
}

TEST_CASE("an embedding's gradient is staged where a group says so, and keeps its device and rows") {
  using T = mgfl::targets::allreduce_embedding_grad;
  const Tensor own = numbers({1, 2, 3, 4, 5, 6, 7, 8}, at::kFloat).reshape({4, 2});
  const auto call = [&](Tensor& grad, mgfl::parallel::GroupList<Outspoken> groups, bool partial) {
    mgfl::implementation<T, mgfl::vendors::default_>::call<Outspoken>(grad, groups, {partial, 1, 2});
  };
  for (const auto lies : {at::kCPU, chip})
    for (const auto wanted : {at::kCPU, chip}) {
      CAPTURE(lies);
      CAPTURE(wanted);
      Outspoken group(wanted, 10);
      Tensor grad = own.clone().to(lies);
      call(grad, group, false);
      CHECK(grad.device().type() == lies);
      CHECK(grad.to(at::kCPU).equal(own.add(10)));
      CHECK(group.device == wanted);
      CHECK(group.elements == 8);
      CHECK((group.dtype == at::kFloat));
      CHECK(group.contiguous);

      Outspoken first(wanted, 10), second(at::kCPU, 20);  // rows 2 and 3 are this rank's: one for each group
      grad = own.clone().to(lies);
      call(grad, {&first, &second}, true);
      CHECK(grad.to(at::kCPU).equal(
          own.add(numbers({0, 0, 0, 0, 10, 10, 20, 20}, at::kFloat).reshape({4, 2}))));
      CHECK(first.device == wanted);
      CHECK(second.device == at::kCPU);
      CHECK(first.elements == 2);
      CHECK(first.contiguous);
    }
  Quiet quiet{10};
  Tensor grad = mgfl_test::to_chip(own);
  mgfl::implementation<T, mgfl::vendors::default_>::call<Quiet>(grad, quiet, {});
  CHECK(quiet.device == chip);
  CHECK(grad.to(at::kCPU).equal(own.add(10)));
}

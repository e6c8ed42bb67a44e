#include "tests/support/doctest.hpp"

#include <c10/core/DeviceType.h>

#include "mgfl/base/error.hpp"
#include "policies/parallel/self.hpp"
#include "policies/training/dist_signal_handler.hpp"
#include "vendors/npu/training/dist_signal_handler.hpp"

#include <csignal>

using namespace mgfl;

namespace {

/// A group that does not say where it wants its tensors.
struct Silent {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_reduce(Tensor&, ReduceOp) {}
  void broadcast(Tensor&, int) {}
  void all_gather(const Tensor&, Tensor&) {}
  void barrier() {}
};

/// A group of a backend that wants its tensors on the chip, or on the CPU.
template <c10::DeviceType Device>
struct Saying : Silent {
  c10::DeviceType device_type_for_comm() const { return Device; }
};

template <class Vendor, class C>
c10::DeviceType device(const C& group) {
  return implementation<targets::get_device, Vendor>::template call<C>(group);
}

}  // namespace

TEST_CASE("a group that says its device is believed by every vendor") {
  const Saying<c10::DeviceType::CUDA> chip;
  const Saying<c10::DeviceType::CPU> host;
  const auto check = [&]<class Vendor>(Vendor) {
    CHECK(device<Vendor>(chip) == c10::DeviceType::CUDA);
    CHECK(device<Vendor>(host) == c10::DeviceType::CPU);
    CHECK(device<Vendor>(parallel::Self()) == c10::DeviceType::CPU);
  };
  check(vendors::original());
  check(vendors::default_());
  check(vendors::npu());
}

TEST_CASE("for a silent group, the original refuses, default takes the CPU, npu its chip") {
  const Silent group;
  CHECK_THROWS_AS(device<vendors::original>(group), UserError);
  CHECK(device<vendors::default_>(group) == c10::DeviceType::CPU);
  CHECK(device<vendors::npu>(group) == c10::DeviceType::PrivateUse1);
}

TEST_CASE("signals are remembered while a handler lives, and are the process's again afterwards") {
  parallel::Self group;
  static int reached = 0;
  const auto before = std::signal(SIGTERM, [](int) { ++reached; });
  {
    training::DistributedSignalHandler handler;
    CHECK(!handler.signals_received(group));
    std::raise(SIGTERM);
    CHECK(handler.signals_received(group));
    CHECK(reached == 0);
  }
  std::raise(SIGTERM);
  CHECK(reached == 1);
  CHECK(!training::DistributedSignalHandler().signals_received(group));  // a new one starts afresh
  std::signal(SIGTERM, before);
}

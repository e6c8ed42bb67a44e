// Which engine a name stands for: verl's order, the build's chain, registries of one's own.
#include "policies/engine/registered_engines.hpp"

#include "tests/support/doctest.hpp"

using namespace mgfl;

namespace {

template <class P, class O, class S, int Number>
struct Fake {
  static constexpr int number = Number;
};

/// An engine that is told apart by its number.
template <int Number>
struct numbered {
  template <class P, class O, class S>
  using engine = Fake<P, O, S, Number>;
};

template <class Choice>
constexpr int number_of = Choice::template engine<int, int, int>::number;

/// An entry of the one key that these tests ask for.
template <int Number, fixed_string Device = any_device, fixed_string Vendor = any_vendor>
using entry = engine_entry<"critic", "tests", numbered<Number>, Device, Vendor>;

using Anywhere = EngineRegistry<entry<1>>;
using ForDevice = Anywhere::with<entry<2, build_device>>;
using ForVendor = ForDevice::with<entry<3, any_device, build_vendor>>;
using ForBoth = ForVendor::with<entry<4, build_device, build_vendor>>;

template <class Registry>
constexpr int chosen = number_of<typename Registry::template engine_for<"critic", "tests">>;

// the vendor's for the device, the vendor's, the device's, the rest, in whatever order they are registered
static_assert(chosen<Anywhere> == 1);
static_assert(chosen<ForDevice> == 2);
static_assert(chosen<ForVendor> == 3);
static_assert(chosen<ForBoth> == 4);
static_assert(chosen<EngineRegistry<entry<4, build_device, build_vendor>, entry<3, any_device, build_vendor>,
                                    entry<2, build_device>, entry<1>>> == 4);
static_assert(chosen<EngineRegistry<entry<2, build_device>, entry<1>>> == 2);

// what was registered for others does not count
using Others =
    EngineRegistry<entry<1>, entry<5, "tpu">, entry<6, "tpu", "someone">, entry<7, any_device, "someone">>;
static_assert(chosen<Others> == 1);
static_assert(number_of<Others::engine_for<"critic", "tests", "tpu">> == 5);
static_assert(number_of<Others::engine_for<"critic", "tests", "tpu", "someone">> == 6);
static_assert(number_of<Others::engine_for<"critic", "tests", build_device, "someone">> == 7);
static_assert(
    number_of<EngineRegistry<entry<1>, entry<5, "tpu">>::engine_for<"critic", "tests", build_device>> == 1);

// vendor default is in every chain, and before "any vendor"
static_assert(chosen<EngineRegistry<entry<1>, entry<8, any_device, "default">>> == 8);
static_assert(number_of<ForBoth::with<entry<8, any_device, "default2">>::engine_for<"critic", "tests">> == 4);

// keys differ by model type and by backend
using Keys =
    EngineRegistry<engine_entry<"critic", "tests", numbered<1>>, engine_entry<"critic", "test", numbered<2>>,
                   engine_entry<"critics", "tests", numbered<3>>>;
static_assert(number_of<Keys::engine_for<"critic", "test">> == 2);
static_assert(number_of<Keys::engine_for<"critics", "tests">> == 3);

// mgfl's own, and more beside them
using P = parallel::DataParallel<parallel::Self>;
using O = optimizer::Local<optimizer::AdamW, optimizer::Fp32>;
using S = scheduler::OptimizerParamScheduler;
using Own = registered_engines::with<engine_entry<"reward_model", "tests", numbered<9>>>;
static_assert(number_of<Own::engine_for<"reward_model", "tests">> == 9);
static_assert(std::is_same_v<
              EngineRegistry<engine_entry<"language_model", "megatron", engines::language_model_megatron>>::
                  engine_for<"language_model", "megatron">::engine<P, O, S>,
              MegatronEngineWithLMHead<P, O, S>>);

}  // namespace

TEST_CASE("an engine's name stands for its class in a template, too") {
  const auto number = []<fixed_string ModelType>() {
    return number_of<typename Keys::template engine_for<ModelType, "tests">>;
  };
  CHECK(number.template operator()<"critic">() == 1);
  CHECK(number.template operator()<"critics">() == 3);
}

TEST_CASE("the build's device and vendor are what its chain says") {
  CHECK(build_vendor.view() == vendors::preferred::name);
  CHECK_FALSE(build_device.view().empty());
  CHECK(build_device.view() != any_device.view());
  if (build_vendor.view() == "npu") CHECK(build_device.view() == "npu");
  if (build_vendor.view() == "default")
    CHECK(build_device.view() == (vendors::chain::has<vendors::cuda> ? "cuda" : "cpu"));
}

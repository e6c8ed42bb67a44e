#include "tests/support/doctest.hpp"

#include <vector>

#include "mgfl/tensor/factory.hpp"
#include "policies/checkpoint/preload_tensors.hpp"
#include "policies/checkpoint/safetensors.hpp"
#include "tests/support/files.hpp"
#include "tests/unit/kernels/support.hpp"
#include "tests/vendors/chip.hpp"
#include "vendors/kunlunxin/checkpoint/preload_tensors.hpp"

using namespace kernel_tests;
namespace chip = mgfl_test::chip;

namespace {

template <class V>
std::vector<Tensor> preload(const std::vector<Tensor>& tensors, bool non_blocking = true) {
  return mgfl::implementation<mgfl::targets::preload_tensors, V>::call(tensors, non_blocking);
}

std::vector<Tensor> examples() {
  Random random(1);
  const Tensor matrix = random.tensor({5, 7}, at::kFloat);
  return {matrix,
          matrix.t(),
          matrix.narrow(1, 2, 3),
          random.tensor({3}, at::kBFloat16),
          random.tensor({}, at::kDouble),
          mgfl::empty({0, 4}, at::kFloat)};
}

}  // namespace

TEST_CASE("tensors on the host are returned as they are, or contiguous") {
  const auto given = examples();
  for (const auto& loaded :
       {preload<mgfl::vendors::original>(given), preload<mgfl::vendors::kunlunxin>(given)}) {
    REQUIRE(loaded.size() == given.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      CHECK(loaded[i].is_contiguous());
      CHECK(loaded[i].sizes() == given[i].sizes());
      CHECK(same_bits(loaded[i], given[i]));
      CHECK((loaded[i].const_data_ptr() == given[i].const_data_ptr()) == given[i].is_contiguous());
    }
  }
  CHECK(preload<mgfl::vendors::original>({}).empty());
}

TEST_CASE("from a chip: the original waits once for all copies, kunlunxin for each, with equal results") {
  const auto given = examples();
  std::vector<Tensor> on_chip;
  for (const Tensor& tensor : given) on_chip.push_back(chip::to_chip(tensor));
  on_chip[1] = on_chip[0].t();
  on_chip[2] = on_chip[0].narrow(1, 2, 3);
  const int copies = static_cast<int>(given.size());
  const auto check = [&](const std::vector<Tensor>& loaded, int blocking, int started, int waits) {
    CHECK(chip::counts().blocking_copies == blocking);
    CHECK(chip::counts().started_copies == started);
    CHECK(chip::counts().waits == waits);
    REQUIRE(loaded.size() == given.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      CHECK(loaded[i].is_cpu());
      CHECK(loaded[i].is_contiguous());
      CHECK(same_bits(loaded[i], given[i]));
    }
    chip::reset_counts();
  };
  chip::reset_counts();
  check(preload<mgfl::vendors::original>(on_chip), 0, copies, 1);
  check(preload<mgfl::vendors::original>(on_chip, false), copies, 0, 0);
  check(preload<mgfl::vendors::kunlunxin>(on_chip), copies, 0, 0);
  check(preload<mgfl::vendors::kunlunxin>(on_chip, false), copies, 0, 0);
}

TEST_CASE("a safetensors file of a chip's tensors holds their values, brought over in one go") {
  const mgfl::test::TemporaryFolder folder;
  const auto given = examples();
  std::vector<std::pair<std::string, Tensor>> named;
  for (std::size_t i = 0; i < given.size(); ++i)
    named.emplace_back(mgfl::concat("t", i), chip::to_chip(given[i]));
  chip::reset_counts();
  mgfl::checkpoint::write_safetensors(folder / "chip.safetensors", named);
  if constexpr (std::is_same_v<mgfl::active_vendor<mgfl::targets::preload_tensors>,
                               mgfl::vendors::original>) {
    CHECK(chip::counts().waits == 1);
    CHECK(chip::counts().blocking_copies == 0);
  }
  const mgfl::checkpoint::SafetensorsFile file(folder / "chip.safetensors");
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Tensor stored = file.tensor(mgfl::concat("t", i));
    CHECK(stored.sizes() == given[i].sizes());
    CHECK(same_bits(stored, given[i]));
  }
}

TEST_CASE("what comes from a chip in one go is bounded by the writer's window, and converted on the chip") {
  const mgfl::test::TemporaryFolder folder;
  constexpr std::int64_t count = 3 << 20;  // 12 MB each: two go together
  std::vector<std::pair<std::string, Tensor>> named;
  for (const char* name : {"a", "b", "c"}) {
    Tensor values = mgfl::zeros({count}, at::kFloat).add(1.0 + static_cast<double>(named.size()));
    values[count - 1].fill_(-1.0);
    named.emplace_back(name, chip::to_chip(values));
  }
  const mgfl::checkpoint::TensorSpec specs[] = {{"a", at::kFloat, {count}},
                                                {"b", at::kFloat, {count}},
                                                {"c", at::kFloat, {count}},
                                                {"d", at::kBFloat16, {count}}};
  named.emplace_back("d", named[0].second);
  mgfl::checkpoint::SafetensorsWriter writer(folder / "x.safetensors", specs);
  chip::reset_counts();
  writer.write(named);
  CHECK(chip::counts().started_copies + chip::counts().blocking_copies == 4);
  if constexpr (std::is_same_v<mgfl::active_vendor<mgfl::targets::preload_tensors>, mgfl::vendors::original>)
    CHECK(chip::counts().waits == 2);
  writer.finish();
  const mgfl::checkpoint::SafetensorsFile file(folder / "x.safetensors");
  for (const auto& [name, values] : named)
    CHECK(same_bits(file.tensor(name), chip::to_host(values).to(file.dtype(name))));
}

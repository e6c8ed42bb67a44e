#include "tests/support/fixture.hpp"

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl::test {

namespace {

Batch rows(const Tensor& ids, const Tensor& labels, const Tensor& mask) {
  Batch batch;
  batch.input_ids = ids.reshape({-1}).contiguous().clone();
  batch.labels = labels.reshape({-1}).contiguous().clone();
  batch.loss_mask = mask.reshape({-1}).contiguous().clone();
  batch.cu_seqlens = empty({ids.size(0) + 1}, at::kInt);
  for (std::int64_t i = 0; i <= ids.size(0); ++i)
    batch.cu_seqlens.data_ptr<std::int32_t>()[i] = static_cast<std::int32_t>(i * ids.size(1));
  return batch;
}

}  // namespace

Fixture::Fixture(const std::string& name)
    : folder(concat(MGFL_TEST_DATA, "/", name)), expected(concat(folder, "/expected.safetensors")) {}

Batch Fixture::batch(const std::string& prefix, std::int64_t first_row, std::int64_t last_row) const {
  const auto length = expected.shape(prefix + "input_ids").back();
  const auto read = [&](const std::string& name) {
    const auto all = expected.tensor(prefix + name).reshape({-1, length});
    return all.narrow(0, first_row, (last_row < 0 ? all.size(0) : last_row) - first_row);
  };
  return rows(read("input_ids"), read("labels"), read("loss_mask"));
}

Batch Fixture::packed() const {
  Batch batch;
  batch.input_ids = expected.tensor("packed.input_ids").reshape({-1}).clone();
  batch.labels = expected.tensor("packed.labels").reshape({-1}).clone();
  batch.loss_mask = zeros({batch.num_tokens()}, at::kFloat).fill_(1.0);
  batch.cu_seqlens = expected.tensor("packed.cu_seqlens").clone();
  return batch;
}

double max_difference(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0) return 0;
  return a.to(at::kDouble).reshape({-1}).sub(b.to(at::kDouble).reshape({-1})).abs().max().item<double>();
}

double gradient_bound(const Tensor& expected) { return 2e-6 + 1e-4 * expected.abs().max().item<double>(); }

}  // namespace mgfl::test

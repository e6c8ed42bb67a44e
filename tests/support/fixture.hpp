/// A small model with the numbers that training it must give, and the bounds that count.
#pragma once

#include <string>

#include "mgfl/engine/batch.hpp"
#include "policies/checkpoint/safetensors.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"
#include "tests/support/doctest.hpp"

namespace mgfl::test {

/// tests/data/NAME: config.json, weights, expected.safetensors and, for most, expected64.safetensors.
struct Fixture {
  explicit Fixture(const std::string& name);

  /// Rows of tensors PREFIX + {input_ids, labels, loss_mask} as sequences of equal length.
  Batch batch(const std::string& prefix = "", std::int64_t first_row = 0, std::int64_t last_row = -1) const;

  /// The packed sequences of unlike length.
  Batch packed() const;

  std::string folder;
  checkpoint::SafetensorsFile expected;
};

using scheduler::constant_schedule;

/// Largest absolute difference, in double.
double max_difference(const Tensor& a, const Tensor& b);

/// The bounds for gradients: 2e-6 + 1e-4 x (largest of that tensor).
double gradient_bound(const Tensor& expected);

}  // namespace mgfl::test

/// A pretended chip: tensors whose memory the host cannot read, and copies that run when they are waited for.
#pragma once

#include "mgfl/tensor/lean.hpp"

namespace mgfl_test::chip {

/// What programs asked of the chip since the last call of `reset_counts`.
struct Counts {
  int blocking_copies = 0;  // to the host, each waited for
  int started_copies = 0;   // to the host, not waited for
  int waits = 0;            // for the chip's stream
};
Counts& counts();
void reset_counts();

/// The same values in the chip's memory, and back.
mgfl::Tensor to_chip(const mgfl::Tensor& host);
mgfl::Tensor to_host(const mgfl::Tensor& chip);

}  // namespace mgfl_test::chip

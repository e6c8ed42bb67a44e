/// Memory for one micro-batch's activations: taken in stack order, kept from step to step, so that nothing is
/// mapped twice.
#pragma once

#include <cstdint>
#include <vector>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::model {

/// A bump allocator over slabs that it never gives back before its end. Not for several threads.
class Arena {
 public:
  /// An uninitialised tensor, 64-byte aligned, valid until the arena is reset to a mark before it.
  Tensor take(at::IntArrayRef shape, at::ScalarType dtype);

  struct Mark {
    std::size_t slab = 0;
    std::int64_t used = 0;
  };
  Mark mark() const { return place_; }
  /// Frees everything taken since `mark`; those tensors must not be used any more.
  void release(Mark mark) { place_ = mark; }

 private:
  std::vector<Tensor> slabs_;
  Mark place_;
};

}  // namespace mgfl::model

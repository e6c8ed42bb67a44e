/// A model's weights as Hugging Face names and tensors, one at a time: what an inference engine is fed with.
// Mirrors the generators that megatron.bridge's AutoBridge.export_hf_weights and mbridge's
// Bridge.export_weights return.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/parallel/whole_values.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/checkpoint/safetensors.hpp"

namespace mgfl::bridge {

/// A tensor with its Hugging Face name and shape, contiguous.
struct NamedHfTensor {
  std::string name;
  Tensor tensor;
};

/// One tensor of an export, and the number of the parameter that it is a view of.
struct PlannedTensor : HfTensor {
  std::size_t param = 0;
};

/// A range of NamedHfTensor, planned once and lazy: an element is made when it is first looked at and let go
/// at the next step, so that one tensor is there at a time. It can be walked again, one walk after the other.
/// It borrows the parameters' memory, which must outlive it and shows later changes; where a tensor's rows
/// already lie together and the dtype is the parameter's, the tensor is that memory itself: clone it to keep
/// its values.
///
/// Where tensor-parallel ranks hold parts, each parameter is gathered when an element of it is first looked
/// at: all ranks of the group walk their ranges in step, looking at the same elements, and weights stay as
/// they are during a walk. A source whose order leads back to a parameter has it gathered again.
class PerTensorParam {
 public:
  class iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = NamedHfTensor;
    using difference_type = std::ptrdiff_t;

    iterator() = default;

    const NamedHfTensor& operator*() const { return range_->element(index_); }
    const NamedHfTensor* operator->() const { return &**this; }
    iterator& operator++() {
      range_->element_.reset();
      ++index_;
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return index_ == range_->size(); }

   private:
    friend class PerTensorParam;
    explicit iterator(PerTensorParam* range) : range_(range) {}

    PerTensorParam* range_ = nullptr;
    std::size_t index_ = 0;
  };

  /// `plan`: the tensors in their order, views of the values of `whole`. `dtype`: that of every tensor; none:
  /// each parameter's own.
  PerTensorParam(std::vector<PlannedTensor> plan, parallel::WholeValues whole,
                 std::optional<at::ScalarType> dtype = std::nullopt)
      : plan_(std::move(plan)), whole_(std::move(whole)), dtype_(dtype) {}

  /// Iterators point into this object. A new walk gathers anew.
  iterator begin() {
    element_.reset();
    gathered_.reset();
    return iterator(this);
  }
  std::default_sentinel_t end() const { return std::default_sentinel; }
  std::size_t size() const { return plan_.size(); }

  /// What the tensors will be, in their order; makes none.
  std::vector<checkpoint::TensorSpec> specs() const;

 private:
  const NamedHfTensor& element(std::size_t index);
  at::ScalarType dtype_of(const HfTensor& part) const { return dtype_.value_or(part.view.scalar_type()); }

  std::vector<PlannedTensor> plan_;
  parallel::WholeValues whole_;
  std::optional<at::ScalarType> dtype_;
  std::optional<NamedHfTensor> element_;  // number made_
  std::size_t made_ = 0;
  std::optional<std::size_t> gathered_;  // the parameter whose value is there
};

static_assert(std::input_iterator<PerTensorParam::iterator>);

}  // namespace mgfl::bridge

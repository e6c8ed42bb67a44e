/// Named tensors that travel with a batch: what a loss wants to know of each token or sequence.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mgfl/tensor/lean.hpp"

namespace mgfl {

/// A few tensors by name, in the order in which they were added: `{{"advantages", a}, {"old_log_probs", o}}`.
class Fields {
 public:
  Fields() = default;
  /// UserError where two have one name.
  Fields(std::initializer_list<std::pair<std::string, Tensor>> fields);

  /// Adds the field, or replaces the one of that name.
  void set(std::string name, Tensor values);

  /// The field. UserError, naming those that are there, where it is not.
  const Tensor& at(std::string_view name) const;

  /// The field, or an undefined tensor.
  Tensor find(std::string_view name) const;

  /// The same names, each tensor through `change`.
  template <class Change>
  Fields transformed(Change&& change) const {
    Fields result;
    for (const auto& [name, values] : all_) result.all_.emplace_back(name, change(values));
    return result;
  }

  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  bool empty() const { return all_.empty(); }

 private:
  std::vector<std::pair<std::string, Tensor>> all_;
};

}  // namespace mgfl

#include "mgfl/engine/fields.hpp"

#include "mgfl/base/error.hpp"

namespace mgfl {

Fields::Fields(std::initializer_list<std::pair<std::string, Tensor>> fields) {
  for (const auto& [name, values] : fields) {
    check_user(!find(name).defined(), "batch: the field \"", name, "\" is given twice.");
    set(name, values);
  }
}

void Fields::set(std::string name, Tensor values) {
  for (auto& [known, old] : all_)
    if (known == name) {
      old = std::move(values);
      return;
    }
  all_.emplace_back(std::move(name), std::move(values));
}

const Tensor& Fields::at(std::string_view name) const {
  std::vector<std::string_view> known;
  for (const auto& [own, values] : all_) {
    if (own == name) return values;
    known.push_back(own);
  }
  throw UserError(concat("batch: there is no field \"", name, "\"; it has ", some_of(known, 12), "."));
}

Tensor Fields::find(std::string_view name) const {
  for (const auto& [own, values] : all_)
    if (own == name) return values;
  return {};
}

}  // namespace mgfl

/// Parameters without a model, and copies of model folders with other tensors, for the bridge's tests.
#pragma once

#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/bridge/hf_weights.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/files.hpp"

namespace mgfl::test {

/// A model's parameters without the model; -99 everywhere.
struct Parameters {
  explicit Parameters(const model::TransformerConfig& config, at::ScalarType dtype = at::kFloat) {
    for (const auto& [name, shape] : bridge::parameters(config)) add(name, shape, dtype);
  }
  Tensor& add(const std::string& name, std::vector<std::int64_t> shape, at::ScalarType dtype) {
    ParamDesc desc;
    desc.name = name;
    desc.shape = shape;
    if (contains(name, "word_embeddings") || (contains(name, "output_layer") && shape[0] != 1))
      desc.placement = PlacementKind::vocab;
    descs.push_back(desc);
    values.push_back(empty(shape, dtype).fill_(-99));
    refs.push_back({&descs.back(), &values.back(), nullptr});
    return values.back();
  }
  Tensor& operator[](const std::string& name) {
    for (std::size_t i = 0; i < descs.size(); ++i)
      if (descs[i].name == name) return values[i];
    throw RunError("no parameter " + name);
  }

  std::deque<ParamDesc> descs;
  std::deque<Tensor> values;
  std::vector<ParamRef> refs;
};

inline bool same_bits(const Tensor& one, const Tensor& other) {
  const Tensor a = one.contiguous(), b = other.contiguous();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// Both have tensors of the same names and bits.
inline void check_same_weights(const bridge::HfWeights& one, const bridge::HfWeights& other) {
  CHECK(std::set<std::string>(one.names().begin(), one.names().end()) ==
        std::set<std::string>(other.names().begin(), other.names().end()));
  for (const std::string& name : one.names()) {
    CAPTURE(name);
    CHECK(same_bits(one.tensor(name), other.tensor(name)));
  }
}

/// A copy of a model's folder whose tensors `edit` may change, add or take away.
template <class Edit>
std::filesystem::path edited(const TemporaryFolder& folder, const char* model, const Edit& edit) {
  const auto model_folder = std::filesystem::path(MGFL_TEST_DATA) / model;
  const bridge::HfWeights source(model_folder);
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : source.names()) tensors[name] = source.tensor(name);
  edit(tensors);
  const std::filesystem::path out = folder / "edited";
  std::filesystem::remove_all(out);
  std::filesystem::create_directory(out);
  std::filesystem::copy_file(model_folder / "config.json", out / "config.json");
  const std::vector<std::pair<std::string, Tensor>> list(tensors.begin(), tensors.end());
  checkpoint::write_safetensors(out / "model.safetensors", list);
  return out;
}

}  // namespace mgfl::test

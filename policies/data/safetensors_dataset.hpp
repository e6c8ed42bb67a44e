/// Samples of equal length from tensors [samples, length], as a .safetensors file holds them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policies/data/sample.hpp"

namespace mgfl::data {

/// Takes the tensors' values row by row; reading the file is the caller's. A value whose copies share the
/// tensors.
class SafetensorsDataset {
 public:
  /// `labels`, `loss_mask` and `returns` may be empty: see make_sample. A row's sample is what
  /// `attention_mask` has as its tokens, all of it where that is empty: 1 for tokens, 0 for padding on either
  /// side. UserError, naming the file, and the row where it is one's, for sizes and values that are wrong.
  SafetensorsDataset(std::string file, std::int64_t num_samples, std::int64_t length,
                     std::vector<std::int64_t> input_ids, std::vector<std::int64_t> labels = {},
                     std::vector<float> loss_mask = {}, std::vector<double> returns = {},
                     std::vector<std::int64_t> attention_mask = {});

  std::int64_t size() const { return tensors_->num_samples; }
  Sample sample(std::int64_t number) const;
  const std::string& name() const { return tensors_->file; }

 private:
  struct Tensors {
    std::string file;
    std::int64_t num_samples, length;
    std::vector<std::int64_t> input_ids, labels;
    std::vector<float> loss_mask;
    std::vector<double> returns;
    std::vector<std::pair<std::int64_t, std::int64_t>> tokens;  // of each row: [begin, end)
  };
  std::shared_ptr<const Tensors> tensors_;
};

}  // namespace mgfl::data

/// A .jsonl file of token ids: one sample a line, {"input_ids": [...], "labels"?: [...], "loss_mask"?: [...],
/// "returns"?: [...]}.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "policies/data/sample.hpp"

namespace mgfl::data {

/// The file is checked as a whole when it is opened and stays on disk: each sample is read when it is asked
/// for. Labels are aligned already and may be -100; lines without text are passed over. A value whose copies
/// share the file.
class JsonlDataset {
 public:
  /// UserError, with file and line, at the first line that is not a sample; also for a file without samples.
  /// `with_returns`: each line must have returns, which are not read otherwise.
  explicit JsonlDataset(const std::string& path, bool with_returns = false);

  std::int64_t size() const;
  Sample sample(std::int64_t number) const;
  /// The path.
  const std::string& name() const;

 private:
  struct File;
  std::shared_ptr<const File> file_;
};

}  // namespace mgfl::data

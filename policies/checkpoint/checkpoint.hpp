/// Checkpoints: folders of safetensors files with a manifest, complete or absent at any moment.
// Mirrors megatron.training.checkpointing's save_checkpoint and load_checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mgfl/base/function_ref.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/checkpoint/safetensors.hpp"

namespace mgfl::checkpoint {

/// A tensor to be saved: `values` holds the elements of `shape` in row-major order, strided as it likes.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  Tensor values;
  std::optional<at::ScalarType> dtype = std::nullopt;  // in the file; none: that of `values`
  // Not negative: save() calls `prepare` with this number before it reads the values of this tensor and of
  // those after it, up to the next one that has a number. They are in memory that others use as well.
  std::int64_t prepare = -1;
};

/// One file of a checkpoint, and what goes into it.
struct FileGroup {
  std::string file;  // e.g. "optimizer.safetensors"
  std::vector<NamedTensor> tensors;
};

/// A small text file that lies beside the tensors, e.g. the model's config.json.
struct TextFile {
  std::string file;
  std::string text;
};

/// An opened checkpoint, its files checked.
class Checkpoint {
 public:
  std::int64_t iteration() const { return iteration_; }
  const std::filesystem::path& folder() const { return folder_; }
  /// The text given to save().
  const std::string& state() const { return state_; }
  /// What people should know: that a newer checkpoint was expected and is not there, or not whole. Mostly
  /// empty.
  const std::string& note() const { return note_; }

  bool has(const std::string& name) const;
  /// A tensor by its name, from whichever file holds it; a view that lives as long as this object. UserError
  /// when no file does.
  Tensor tensor(const std::string& name) const;
  std::span<const SafetensorsFile> files() const { return files_; }

 private:
  friend Checkpoint load(const std::filesystem::path& dir, std::optional<std::int64_t> iteration);

  std::int64_t iteration_ = 0;
  std::filesystem::path folder_;
  std::string state_, note_;
  std::vector<SafetensorsFile> files_;
};

/// Writes DIR/iter_0000020 with the files, the texts, state.json (`state`, any JSON text) and manifest.json
/// (each file's size and XXH64), all under a temporary name, flushed, the manifest last, then renamed into
/// place; then latest_checkpointed_iteration.txt; then removes all but the newest `keep_last` complete ones
/// (0 keeps all) and what broken saves left. One process at a time writes to DIR. On any failure (RunError:
/// no space, no permission) what was there before stays loadable.
void save(
    const std::filesystem::path& dir, std::int64_t iteration, std::span<const FileGroup> groups,
    std::string_view state, int keep_last, std::span<const TextFile> texts = {},
    function_ref<void(std::int64_t)> prepare = [](std::int64_t) {});

/// Iterations of the complete checkpoints in `dir`, ascending; a folder without a manifest is none. Other
/// folders and files are ignored, and so is a `dir` that does not exist.
std::vector<std::int64_t> complete_iterations(const std::filesystem::path& dir);

/// Opens the newest complete checkpoint, the given one, or the one whose own folder `dir` is; checks sizes
/// and hashes of all its files. UserError: there is none, or a file is missing, cut short or altered (it
/// names the file).
Checkpoint load(const std::filesystem::path& dir, std::optional<std::int64_t> iteration = std::nullopt);

}  // namespace mgfl::checkpoint

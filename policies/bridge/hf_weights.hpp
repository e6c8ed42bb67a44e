/// The weights of a Hugging Face model folder, in one safetensors file or in shards with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mgfl/tensor/fwd.hpp"
#include "policies/checkpoint/safetensors.hpp"

namespace mgfl::bridge {

/// An open weights folder. Opening reads headers only, and checks that index and shards tell the same story.
class HfWeights {
 public:
  /// `path`: a model folder, or one .safetensors file. As in transformers, model.safetensors goes before an
  /// index. UserError naming file and tensor when a shard or a listed tensor is missing, stands elsewhere, or
  /// is not listed.
  explicit HfWeights(const std::filesystem::path& path);

  /// All tensors, file by file, in the order of their bytes.
  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const { return where_.count(name) != 0; }

  const std::vector<std::int64_t>& shape(const std::string& name) const { return file(name).shape(name); }
  at::ScalarType dtype(const std::string& name) const { return file(name).dtype(name); }

  /// A view of the mapped file; lives as long as this object.
  Tensor tensor(const std::string& name) const;
  /// Gives back the memory that reading the tensor took.
  void release(const std::string& name) const { file(name).release(name); }

  /// The file that holds the tensor. UserError when there is none.
  const checkpoint::SafetensorsFile& file(const std::string& name) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  void open_sharded(const std::filesystem::path& index);

  std::filesystem::path folder_;
  std::filesystem::path source_;  // the file or the index, for messages
  std::vector<checkpoint::SafetensorsFile> files_;
  std::unordered_map<std::string, std::size_t> where_;
  std::vector<std::string> names_;
};

inline constexpr std::uint64_t kDefaultShardLimit = 5'000'000'000;

/// Writes such a folder tensor by tensor: one model.safetensors, or shards of at most `shard_limit` bytes of
/// tensors (a larger tensor gets a shard of its own) and an index of what was written. Nothing in `folder`
/// changes before finish(), which puts all in place at once: a folder that held an older export is exchanged
/// as a whole, its other files kept, its old weights removed. (Where folders cannot be exchanged, the old
/// index goes first: loading fails for a moment, but never mixes.)
class HfWeightsWriter {
 public:
  HfWeightsWriter(std::filesystem::path folder, std::span<const checkpoint::TensorSpec> specs,
                  std::uint64_t shard_limit = kDefaultShardLimit);
  ~HfWeightsWriter();
  HfWeightsWriter(const HfWeightsWriter&) = delete;
  HfWeightsWriter& operator=(const HfWeightsWriter&) = delete;

  /// As SafetensorsWriter::write: any order, any strides, converted to the declared dtype.
  void write(const std::string& name, const Tensor& values);

  /// Puts another file beside the weights: config.json, a tokenizer.
  void write_text(std::string_view name, std::string_view text);
  void copy_file(const std::filesystem::path& source);

  /// RunError when a declared tensor was not written; then the folder stays as it was.
  void finish();

 private:
  struct Shard {
    std::string file;
    std::vector<checkpoint::TensorSpec> specs;
    std::size_t missing = 0;
    std::unique_ptr<checkpoint::SafetensorsWriter> writer;
  };

  struct Place {
    std::size_t shard;
    std::uint64_t bytes;
  };

  std::filesystem::path folder_, work_;  // `work_` holds everything until finish()
  std::unique_ptr<checkpoint::FolderGuard> guard_;
  bool exchange_ = false;
  std::vector<Shard> shards_;
  std::unordered_map<std::string, Place> places_;
  std::map<std::string, std::string> written_;  // tensor name -> file
  std::uint64_t written_bytes_ = 0;
};

}  // namespace mgfl::bridge

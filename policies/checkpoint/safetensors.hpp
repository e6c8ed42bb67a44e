/// Reads and writes safetensors files: checked before use, mapped instead of read, written whole or not at
/// all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "mgfl/tensor/fwd.hpp"
#include "policies/checkpoint/files.hpp"

namespace mgfl::checkpoint {

/// The format's name of a dtype, e.g. "BF16". UserError for one that the format or mgfl lacks.
std::string_view safetensors_dtype_name(at::ScalarType dtype);

/// One tensor as a header describes it; offsets count from the start of the data section.
struct TensorEntry {
  std::string name;
  std::string dtype;  // the format's name, F8_E4M3 for instance
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

/// An open safetensors file. Opening checks the whole header: unique keys, known dtypes, offsets that agree
/// with shapes and that cover the data section exactly, without holes or overlap; each fault is a UserError
/// naming file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// All tensors, in the order of their bytes.
  std::span<const TensorEntry> entries() const { return entries_; }
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return index_.count(name) != 0; }

  /// UserError when there is no such tensor.
  const TensorEntry& entry(const std::string& name) const;
  const std::vector<std::int64_t>& shape(const std::string& name) const { return entry(name).shape; }
  /// UserError also for a dtype that mgfl cannot compute with (FP8 and the like).
  at::ScalarType dtype(const std::string& name) const;

  /// The tensor itself, without a copy: it lives in the mapped file and must not outlive this object. Writing
  /// into it changes a private copy of the page, never the file.
  Tensor tensor(const std::string& name) const;

  /// Gives back the memory that reading the tensor took; it can be read again.
  void release(const std::string& name) const;

  /// The header's __metadata__.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  const char* data() const { return static_cast<const char*>(mapping_) + data_offset_; }

  std::filesystem::path path_;
  void* mapping_ = nullptr;
  std::size_t mapping_size_ = 0;
  std::size_t data_offset_ = 0;
  std::vector<TensorEntry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// What a writer is told of a tensor before its values.
struct TensorSpec {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
};

/// Bytes of a tensor with that dtype and shape. UserError for a negative dimension or more than 2^63 bytes.
std::uint64_t tensor_bytes(const TensorSpec& spec);

/// Writes a file piece by piece: the header from the declared tensors first, then each tensor's values, in
/// any order. The file stands under a temporary name until finish(); without finish() nothing stays.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, std::span<const TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&& other) noexcept = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  /// Writes the values of a declared tensor in row-major order, whatever the strides; converted to the
  /// declared dtype. `values` needs the declared number of elements, in any shape and any device's memory. At
  /// most some 32 MB are copied at a time. RunError when it is not declared, or written twice.
  void write(const std::string& name, const Tensor& values);

  /// The same for many tensors; what fits the 32 MB comes from a device's memory in one go.
  void write(std::span<const std::pair<std::string, Tensor>> tensors);

  /// Flushes and moves the file into place. RunError when a declared tensor was not written.
  void finish();

 private:
  struct Slot {
    TensorSpec spec;
    std::uint64_t offset = 0;  // in the file
    bool written = false;
  };

  /// The slot of a tensor that is about to be written, marked as written.
  Slot& take_slot(const std::string& name, const Tensor& values);

  std::filesystem::path path_;
  std::unique_ptr<FolderGuard> guard_;
  std::unique_ptr<OutputFile> output_;
  std::unordered_map<std::string, Slot> slots_;
};

/// Writes tensors that are all at hand: name and values, with their own shapes and dtypes.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, Tensor>> tensors);

}  // namespace mgfl::checkpoint

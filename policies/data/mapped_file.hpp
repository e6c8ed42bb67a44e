/// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace mgfl::data {

/// Owns the mapping and cannot be copied. Throws UserError naming the file when it cannot be opened.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mgfl::data

/// Files and folders that are whole or absent, whatever moment a process dies at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace mgfl::checkpoint {

/// A file open for writing at any offset; RunError on every failure, naming the file and the system's reason.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);  // created, or emptied
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  void write_at(const void* bytes, std::size_t size, std::uint64_t offset);
  /// Flushes to the device and closes; nothing may be written afterwards.
  void finish();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_;
};

/// Writes `text` beside `file`, flushes it, and renames it into place: a reader sees the old text or the new
/// one.
void write_text(const std::filesystem::path& file, std::string_view text);

/// Flushes a folder's entries, so that renames in it outlive a power cut.
void sync_folder(const std::filesystem::path& folder);

/// Swaps two folders of one parent in a single step of the file system; false where that cannot be done (some
/// network file systems, mount points), and then nothing has changed.
bool exchange_folders(const std::filesystem::path& one, const std::filesystem::path& other);

/// Puts folder `from` in the place of `to` (same parent) and removes what `to` was: in one step where the
/// file system can exchange folders, else `to` is absent for the time between two renames.
void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to);

/// A sibling of `path` for work in progress: PATH.tmp-PID.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

/// Removes a folder with all in it when it goes out of scope, unless it was kept.
class FolderGuard {
 public:
  explicit FolderGuard(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~FolderGuard();
  FolderGuard(FolderGuard&& other) noexcept : folder_(std::move(other.folder_)) { other.folder_.clear(); }
  FolderGuard& operator=(FolderGuard&&) = delete;

  void keep() { folder_.clear(); }

 private:
  std::filesystem::path folder_;
};

/// XXH64 of a file's bytes, as 16 hexadecimal digits. UserError when it cannot be read.
std::string hash_file(const std::filesystem::path& file);

}  // namespace mgfl::checkpoint

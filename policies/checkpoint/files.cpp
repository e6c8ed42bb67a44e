#include "policies/checkpoint/files.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "mgfl/base/error.hpp"
#include "mgfl/base/xxh64.hpp"

namespace mgfl::checkpoint {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  const int error = errno;
  check_run(descriptor_ >= 0, path_.string(), ": cannot be created (", reason(error), ")");
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

void OutputFile::write_at(const void* bytes, std::size_t size, std::uint64_t offset) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::pwrite(descriptor_, from, size, static_cast<off_t>(offset));
    const int error = errno;
    if (written < 0 && error == EINTR) continue;
    check_run(written > 0, path_.string(), ": writing ", size, " bytes at ", offset, " failed (",
              written < 0 ? reason(error) : "nothing was written", "); is the disk full?");
    from += written;
    offset += static_cast<std::uint64_t>(written);
    size -= static_cast<std::size_t>(written);
  }
}

void OutputFile::finish() {
  const int synced = ::fsync(descriptor_);
  const int sync_error = errno;
  const int closed = ::close(std::exchange(descriptor_, -1));
  const int close_error = errno;
  check_run(synced == 0, path_.string(), ": flushing failed (", reason(sync_error), ")");
  check_run(closed == 0, path_.string(), ": closing failed (", reason(close_error), ")");
}

std::filesystem::path temporary_sibling(const std::filesystem::path& path) {
  return path.parent_path() / concat(path.filename().string(), ".tmp-", ::getpid());
}

void write_text(const std::filesystem::path& file, std::string_view text) {
  const auto aside = temporary_sibling(file);
  FolderGuard guard(aside);
  OutputFile output(aside);
  output.write_at(text.data(), text.size(), 0);
  output.finish();
  std::error_code error;
  std::filesystem::rename(aside, file, error);
  check_run(!error, file.string(), ": cannot be put in place (", error.message(), ")");
  guard.keep();
  sync_folder(file.parent_path());
}

void sync_folder(const std::filesystem::path& folder) {
  const std::string name = folder.empty() ? "." : folder.string();
  const int descriptor = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int error = errno;
  check_run(descriptor >= 0, name, ": cannot be opened (", reason(error), ")");
  // Some file systems refuse to flush a folder; there is nothing more to do on those.
  ::fsync(descriptor);
  ::close(descriptor);
}

bool exchange_folders(const std::filesystem::path& one, const std::filesystem::path& other) {
  return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0;
}

void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::path old = from;
  if (std::filesystem::exists(to) && !exchange_folders(from, to)) {
    old += "-old";
    std::filesystem::rename(to, old, error);
    check_run(!error, to.string(), ": cannot be moved aside (", error.message(), ")");
  }
  if (old != from || !std::filesystem::exists(to)) {
    std::filesystem::rename(from, to, error);
    check_run(!error, to.string(), ": cannot be put in place (", error.message(), ")");
  }
  sync_folder(to.parent_path());
  std::filesystem::remove_all(old, error);
}

FolderGuard::~FolderGuard() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

std::string hash_file(const std::filesystem::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const int open_error = errno;
  check_user(descriptor >= 0, file.string(), ": cannot be opened (", reason(open_error), ")");
  struct Close {
    int descriptor;
    ~Close() { ::close(descriptor); }
  } close{descriptor};
  Xxh64 hash;
  std::vector<char> window(1 << 20);
  for (;;) {
    const ssize_t count = ::read(descriptor, window.data(), window.size());
    const int error = errno;
    if (count < 0 && error == EINTR) continue;
    check_user(count >= 0, file.string(), ": cannot be read (", reason(error), ")");
    if (count == 0) break;
    hash.update(window.data(), static_cast<std::size_t>(count));
  }
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash.digest()));
  return digits;
}

}  // namespace mgfl::checkpoint

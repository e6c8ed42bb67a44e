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

namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu,
                        kPrime3 = 0x165667B19E3779F9u, kPrime4 = 0x85EBCA77C2B2AE63u,
                        kPrime5 = 0x27D4EB2F165667C5u;

std::uint64_t rotate(std::uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

template <class Word>
Word load(const unsigned char* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

std::uint64_t mix(std::uint64_t lane, std::uint64_t word) {
  return rotate(lane + word * kPrime2, 31) * kPrime1;
}

void mix_stripe(std::uint64_t (&lanes)[4], const unsigned char* bytes) {
  for (int i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], load<std::uint64_t>(bytes + 8 * i));
}

}  // namespace

Xxh64::Xxh64(std::uint64_t seed)
    : lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1}, seed_(seed) {}

void Xxh64::update(const void* bytes, std::size_t size) {
  auto from = static_cast<const unsigned char*>(bytes);
  total_ += size;
  if (buffered_ > 0) {
    const std::size_t taken = std::min(size, sizeof(buffer_) - buffered_);
    std::memcpy(buffer_ + buffered_, from, taken);
    buffered_ += taken;
    from += taken;
    size -= taken;
    if (buffered_ < sizeof(buffer_)) return;
    mix_stripe(lanes_, buffer_);
    buffered_ = 0;
  }
  for (; size >= sizeof(buffer_); from += sizeof(buffer_), size -= sizeof(buffer_)) mix_stripe(lanes_, from);
  if (size > 0) std::memcpy(buffer_, from, size);
  buffered_ = size;
}

std::uint64_t Xxh64::digest() const {
  std::uint64_t hash = seed_ + kPrime5;
  if (total_ >= sizeof(buffer_)) {
    hash = rotate(lanes_[0], 1) + rotate(lanes_[1], 7) + rotate(lanes_[2], 12) + rotate(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const unsigned char* at = buffer_;
  const unsigned char* end = buffer_ + buffered_;
  for (; end - at >= 8; at += 8)
    hash = rotate(hash ^ mix(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  for (; end - at >= 4; at += 4)
    hash = rotate(hash ^ load<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; at < end; ++at) hash = rotate(hash ^ *at * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
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

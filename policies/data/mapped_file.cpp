#include "policies/data/mapped_file.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mgfl/base/error.hpp"

namespace mgfl::data {

MappedFile::MappedFile(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check_user(file >= 0, "Cannot open ", path, ": ", std::strerror(errno), ".");
  struct stat status {};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  if (regular && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) data_ = static_cast<const std::byte*>(mapped);
  }
  const int failure = errno;
  ::close(file);
  check_user(regular, path, " is not a regular file; name a data file.");
  check_user(size_ == 0 || data_ != nullptr, "Cannot map ", path, " (", size_,
             " bytes) into memory: ", std::strerror(failure), ".");
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace mgfl::data

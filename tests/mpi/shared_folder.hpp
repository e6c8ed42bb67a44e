/// A folder for all ranks of a test, and comparisons of what lies in folders and tensors.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/parallel/mpi.hpp"
#include "tests/support/files.hpp"

namespace mgfl_test {

/// Whether the bits are equal, those of NaN and -0 too.
inline bool same_bits(const mgfl::Tensor& a, const mgfl::Tensor& b) {
  const auto one = a.contiguous(), other = b.contiguous();
  return one.scalar_type() == other.scalar_type() && one.numel() == other.numel() &&
         (one.numel() == 0 || std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0);
}

/// The bytes of every file of the folder, by name.
inline std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[entry.path().filename().string()] = mgfl::test::read_file(entry.path());
  return files;
}

/// One folder for all ranks.
struct SharedFolder {
  explicit SharedFolder(mgfl::parallel::Mpi& world) : world_(world) {
    auto text = mgfl::zeros({4096}, at::kByte);
    std::strncpy(static_cast<char*>(text.mutable_data_ptr()), own_.path().c_str(), 4095);
    world.broadcast(text, 0);
    path = static_cast<const char*>(text.const_data_ptr());
  }
  ~SharedFolder() { world_.barrier(); }
  std::filesystem::path path;

 private:
  mgfl::parallel::Mpi& world_;
  mgfl::test::TemporaryFolder own_;
};

}  // namespace mgfl_test

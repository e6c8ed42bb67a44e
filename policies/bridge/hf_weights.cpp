#include "policies/bridge/hf_weights.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>
#include <system_error>
#include <utility>

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/bridge/json.hpp"

namespace mgfl::bridge {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kSingle = "model.safetensors", kIndex = "model.safetensors.index.json";

// model-00001-of-00002.safetensors
bool is_shard_name(std::string_view name) {
  constexpr std::string_view kPattern = "model-#-of-#.safetensors";
  std::size_t at = 0;
  for (const char expected : kPattern) {
    if (expected == '#') {
      const std::size_t first = at;
      while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
      if (at == first) return false;
    } else if (at >= name.size() || name[at++] != expected) {
      return false;
    }
  }
  return at == name.size();
}

bool is_weights_file(std::string_view name) {
  return name == kSingle || name == kIndex || is_shard_name(name);
}

bool holds_weights(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (is_weights_file(entry.path().filename().string())) return true;
  return false;
}

// A mount point cannot be renamed, and its parent lies on another device.
bool same_device(const fs::path& one, const fs::path& other) {
  struct stat first {
  }, second{};
  return ::stat(one.c_str(), &first) == 0 && ::stat(other.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev;
}

// Brings what stands beside the old weights into the new folder, as further links to the same files where
// possible.
void carry_over(const fs::path& from, const fs::path& to) {
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path target = to / entry.path().filename();
    if (is_weights_file(entry.path().filename().string()) || fs::exists(fs::symlink_status(target))) continue;
    constexpr auto kTree = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
    std::error_code error;
    fs::copy(entry.path(), target, kTree | fs::copy_options::create_hard_links, error);
    if (!error) continue;
    fs::remove_all(target, error);
    fs::copy(entry.path(), target, kTree, error);
    check_run(!error, entry.path().string(), ": cannot be copied to ", target.string(), " (", error.message(),
              ")");
  }
}

// Moves the files of `from` into `to`, where weights of another model never stand beside these: the old index
// goes first, the new one comes last.
void move_files(const fs::path& from, const fs::path& to) {
  fs::remove(to / kIndex);
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(to))
    if (is_weights_file(entry.path().filename().string())) old.push_back(entry.path());
  for (const fs::path& file : old) fs::remove(file);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(from)) files.push_back(entry.path());
  std::stable_partition(files.begin(), files.end(),
                        [](const fs::path& file) { return file.filename() != kIndex; });
  for (const fs::path& file : files) {
    std::error_code error;
    fs::rename(file, to / file.filename(), error);
    if (error == std::errc::cross_device_link)
      fs::copy_file(file, to / file.filename(), fs::copy_options::overwrite_existing, error);
    check_run(!error, (to / file.filename()).string(), ": cannot be put in place (", error.message(), ")");
  }
  checkpoint::sync_folder(to);
}

}  // namespace

HfWeights::HfWeights(const fs::path& path) : folder_(path), source_(path) {
  std::error_code ignored;
  check_user(fs::exists(path, ignored), path.string(), ": no such file or folder");
  if (!fs::is_directory(path, ignored)) {
    folder_ = path.parent_path();
    files_.emplace_back(path);
  } else if (fs::exists(path / kSingle, ignored)) {
    source_ = path / kSingle;
    files_.emplace_back(source_);
  } else {
    check_user(fs::exists(path / kIndex, ignored), path.string(), ": holds neither ", kSingle, " nor ",
               kIndex, "; weights of other formats must be converted to safetensors first");
    source_ = path / kIndex;
    open_sharded(source_);
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const auto& entry : files_[i].entries()) {
      names_.push_back(entry.name);
      where_.emplace(entry.name, i);
    }
  }
}

void HfWeights::open_sharded(const fs::path& index) {
  const std::string name = index.string();
  const Json json = read_json(index);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  check_user(json.is_object() && map != json.end() && map->is_object(), name,
             ": has no \"weight_map\" object");
  std::map<std::string, std::set<std::string>> listed;  // file -> its tensors
  for (const auto& [tensor, file] : map->items()) {
    check_user(file.is_string(), name, ": the file of tensor \"", tensor, "\" is ", file.dump(),
               ", expected a string");
    const auto shard = file.get<std::string>();
    check_user(!shard.empty() && fs::path(shard).filename() == shard && shard != "." && shard != "..", name,
               ": tensor \"", tensor, "\" is said to lie in \"", shard, "\", which is no plain file name");
    listed[shard].insert(tensor);
  }
  for (const auto& [shard, tensors] : listed) {
    const fs::path path = folder_ / shard;
    std::error_code ignored;
    check_user(fs::exists(path, ignored), path.string(), ": is missing, but ", kIndex,
               " says that it holds tensor \"", *tensors.begin(), "\" and ", tensors.size() - 1,
               " more; download or export the model again");
    const auto& file = files_.emplace_back(path);
    for (const std::string& tensor : tensors)
      check_user(file.has(tensor), path.string(), ": has no tensor \"", tensor, "\", but ", kIndex,
                 " says so");
    for (const auto& entry : file.entries()) {
      const auto found = map->find(entry.name);
      check_user(found != map->end(), path.string(), ": holds tensor \"", entry.name, "\", which ", kIndex,
                 " does not list");
      check_user(*found == shard, path.string(), ": holds tensor \"", entry.name, "\", but ", kIndex,
                 " says it is in ", found->dump());
    }
  }
}

Tensor HfWeights::tensor(const std::string& name) const { return file(name).tensor(name); }

const checkpoint::SafetensorsFile& HfWeights::file(const std::string& name) const {
  const auto found = where_.find(name);
  check_user(found != where_.end(), source_.string(), ": has no tensor \"", name, "\"");
  return files_[found->second];
}

HfWeightsWriter::HfWeightsWriter(fs::path folder, std::span<const checkpoint::TensorSpec> specs,
                                 std::uint64_t shard_limit)
    : folder_(std::move(folder)) {
  check_user(shard_limit > 0, "the shard limit is 0 bytes, expected 1 or more");
  std::uint64_t size = 0;
  for (const auto& spec : specs) {
    const std::uint64_t bytes = checkpoint::tensor_bytes(spec);
    if (shards_.empty() || (size > 0 && size + bytes > shard_limit)) {
      shards_.emplace_back();
      size = 0;
    }
    size += bytes;
    shards_.back().specs.push_back(spec);
    check_run(places_.emplace(spec.name, Place{shards_.size() - 1, bytes}).second, folder_.string(),
              ": tensor \"", spec.name, "\" is declared twice");
  }
  if (shards_.empty()) shards_.emplace_back();
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards_.size());
    shards_[i].file = shards_.size() == 1 ? std::string(kSingle) : name;
    shards_[i].missing = shards_[i].specs.size();
  }

  std::error_code error;
  folder_ = fs::weakly_canonical(folder_, error);  // through links, so that a link stays one
  check_user(!error, folder_.string(), ": is no usable path (", error.message(), ")");
  if (folder_.filename().empty()) folder_ = folder_.parent_path();  // a trailing slash
  const bool exists = fs::exists(folder_);
  check_user(!exists || fs::is_directory(folder_), folder_.string(), ": exists and is no folder");
  exchange_ = exists && holds_weights(folder_) && same_device(folder_, folder_.parent_path());
  work_ = exchange_ || !exists ? checkpoint::temporary_sibling(folder_)
                               : checkpoint::temporary_sibling(folder_ / ".export");
  fs::remove_all(work_, error);
  fs::create_directories(work_, error);
  check_run(!error, work_.string(), ": cannot be created (", error.message(), ")");
  guard_ = std::make_unique<checkpoint::FolderGuard>(work_);
}

HfWeightsWriter::~HfWeightsWriter() = default;

void HfWeightsWriter::write(const std::string& name, const Tensor& values) {
  const auto found = places_.find(name);
  check_run(found != places_.end(), folder_.string(), ": tensor \"", name, "\" was not declared");
  Shard& shard = shards_[found->second.shard];
  check_run(shard.missing > 0, folder_.string(), ": tensor \"", name, "\" is written twice");
  if (!shard.writer)
    shard.writer = std::make_unique<checkpoint::SafetensorsWriter>(work_ / shard.file, shard.specs);
  shard.writer->write(name, values);
  written_.emplace(name, shard.file);
  written_bytes_ += found->second.bytes;
  if (--shard.missing == 0) {
    shard.writer->finish();
    shard.writer.reset();
  }
}

void HfWeightsWriter::write_text(std::string_view name, std::string_view text) {
  checkpoint::write_text(work_ / name, text);
}

void HfWeightsWriter::copy_file(const fs::path& source) {
  std::error_code error;
  fs::copy_file(source, work_ / source.filename(), fs::copy_options::overwrite_existing, error);
  check_run(!error, source.string(), ": cannot be copied to ", work_.string(), " (", error.message(), ")");
}

void HfWeightsWriter::finish() {
  for (Shard& shard : shards_) {
    if (shard.specs.empty()) checkpoint::SafetensorsWriter(work_ / shard.file, shard.specs).finish();
    for (const auto& spec : shard.specs)
      check_run(written_.count(spec.name) != 0, folder_.string(), ": tensor \"", spec.name,
                "\" was declared but never written");
  }
  if (shards_.size() > 1) {
    Json index;
    index["metadata"]["total_size"] = written_bytes_;
    index["weight_map"] = written_;
    checkpoint::write_text(work_ / kIndex, index.dump(2) + "\n");
  }
  checkpoint::sync_folder(work_);
  if (!fs::exists(folder_)) {
    checkpoint::replace_folder(work_, folder_);
  } else if (exchange_) {
    carry_over(folder_, work_);
    checkpoint::sync_folder(work_);
    if (!checkpoint::exchange_folders(work_, folder_)) move_files(work_, folder_);
    checkpoint::sync_folder(folder_.parent_path());
  } else {
    move_files(work_, folder_);
  }
  guard_.reset();  // removes what is left: the old weights, or an empty folder
}

}  // namespace mgfl::bridge

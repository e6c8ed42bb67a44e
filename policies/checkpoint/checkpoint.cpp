#include "policies/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "policies/bridge/json.hpp"
#include "policies/checkpoint/files.hpp"

namespace mgfl::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kManifest = "manifest.json", kState = "state.json",
                           kLatest = "latest_checkpointed_iteration.txt", kPrefix = "iter_",
                           kTemporary = ".tmp-";
constexpr std::string_view kFormat = "mgfl-checkpoint";
constexpr std::uint64_t kVersion = 1;

std::string folder_name(std::int64_t iteration) {
  char name[32];
  std::snprintf(name, sizeof(name), "iter_%07lld", static_cast<long long>(iteration));
  return name;
}

// The iteration of a folder that save() names so, and of no other: iter_20 is somebody else's.
std::optional<std::int64_t> iteration_of(std::string_view name) {
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t iteration = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), iteration);
  if (error != std::errc() || end != digits.data() + digits.size() || iteration < 0) return std::nullopt;
  return folder_name(iteration) == name ? std::optional(iteration) : std::nullopt;
}

// Leftovers of saves or removals that were cut off.
bool is_leftover(std::string_view name) {
  const auto mark = name.find(kTemporary);
  return mark != std::string_view::npos &&
         (iteration_of(name.substr(0, mark)) || name.substr(0, mark) == kLatest);
}

void remove_leftovers(const fs::path& dir) {
  std::vector<fs::path> leftovers;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored))
    if (is_leftover(entry.path().filename().string())) leftovers.push_back(entry.path());
  for (const fs::path& path : leftovers) fs::remove_all(path, ignored);
}

// A folder loses its name before its files, so that a removal that is cut off leaves nothing that looks
// complete.
void remove_checkpoint(const fs::path& folder) {
  const fs::path aside = temporary_sibling(folder);
  std::error_code error;
  fs::rename(folder, aside, error);
  if (!error) fs::remove_all(aside, error);
}

void check_file_name(const std::string& name) {
  check_run(!name.empty() && fs::path(name).filename() == name && name != "." && name != ".." &&
                name != kManifest && name != kState,
            "\"", name, "\" cannot be the name of a checkpoint's file");
}

[[noreturn]] void damaged(const fs::path& file, const std::string& what) {
  throw UserError(
      concat(file.string(), ": ", what, "; remove this checkpoint's folder to go on from an older one"));
}

// Reads one entry of the manifest and holds the file against it.
std::string check_file(const fs::path& folder, const Json& entry) {
  const fs::path manifest = folder / kManifest;
  if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
      !entry.contains("size") || !entry["size"].is_number_unsigned() || !entry.contains("xxh64") ||
      !entry["xxh64"].is_string())
    damaged(manifest, concat("an entry is ", entry.dump(), ", expected name, size and xxh64"));
  const auto name = entry["name"].get<std::string>();
  if (fs::path(name).filename() != name) damaged(manifest, concat("\"", name, "\" is no plain file name"));
  const fs::path file = folder / name;
  std::error_code error;
  const auto size = fs::file_size(file, error);
  if (error) damaged(file, concat("is listed in ", kManifest, " but cannot be read (", error.message(), ")"));
  const auto expected = entry["size"].get<std::uint64_t>();
  if (size != expected)
    damaged(file, concat("has ", size, " bytes, but ", expected, " were written; it is damaged"));
  const std::string hash = hash_file(file);
  if (hash != entry["xxh64"].get<std::string>())
    damaged(file, concat("has hash ", hash, ", but ", entry["xxh64"].get<std::string>(),
                         " was written; it is damaged"));
  return name;
}

void write_group(const fs::path& file, const FileGroup& group, function_ref<void(std::int64_t)> prepare) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : group.tensors)
    specs.push_back({tensor.name, tensor.dtype.value_or(tensor.values.scalar_type()), tensor.shape});
  SafetensorsWriter writer(file, specs);
  std::vector<std::pair<std::string, Tensor>> values;
  for (const NamedTensor& tensor : group.tensors) {
    if (tensor.prepare >= 0) {
      writer.write(values);
      values.clear();
      prepare(tensor.prepare);
    }
    values.emplace_back(tensor.name, tensor.values);
  }
  writer.write(values);
  writer.finish();
}

// The mark of the last save names another iteration than the newest complete one: say so, never fall back in
// silence.
std::string note_about(const fs::path& dir, std::int64_t newest) {
  std::error_code ignored;
  const fs::path mark = dir / kLatest;
  if (!fs::exists(mark, ignored))
    return concat(mark.string(), " is missing; going on from iteration ", newest);
  std::string text = bridge::read_text(mark).substr(0, 24);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text == std::to_string(newest)) return "";
  return concat(mark.string(), " says \"", text, "\", but the newest complete checkpoint is of iteration ",
                newest, "; going on from that one");
}

}  // namespace

bool Checkpoint::has(const std::string& name) const {
  return std::any_of(files_.begin(), files_.end(),
                     [&](const SafetensorsFile& file) { return file.has(name); });
}

Tensor Checkpoint::tensor(const std::string& name) const {
  for (const SafetensorsFile& file : files_)
    if (file.has(name)) return file.tensor(name);
  throw UserError(concat(folder_.string(), ": no file of this checkpoint has tensor \"", name, "\""));
}

void save(const fs::path& dir, std::int64_t iteration, std::span<const FileGroup> groups,
          std::string_view state, int keep_last, std::span<const TextFile> texts,
          function_ref<void(std::int64_t)> prepare) {
  check_run(iteration >= 0, "a checkpoint of iteration ", iteration, " cannot be saved");
  bridge::parse_json(state, "state of the checkpoint");
  std::set<std::string> tensor_names, file_names;
  for (const FileGroup& group : groups) {
    check_file_name(group.file);
    check_run(file_names.insert(group.file).second, "checkpoint file \"", group.file, "\" is given twice");
    for (const NamedTensor& tensor : group.tensors)
      check_run(tensor_names.insert(tensor.name).second, "checkpoint tensor \"", tensor.name,
                "\" is given twice");
  }
  for (const TextFile& text : texts) {
    check_file_name(text.file);
    check_run(file_names.insert(text.file).second, "checkpoint file \"", text.file, "\" is given twice");
  }
  std::error_code error;
  fs::create_directories(dir, error);
  check_run(!error, dir.string(), ": cannot be created (", error.message(), ")");
  remove_leftovers(dir);

  const fs::path folder = dir / folder_name(iteration), work = temporary_sibling(folder);
  FolderGuard guard(work);
  fs::create_directory(work, error);
  check_run(!error, work.string(), ": cannot be created (", error.message(), ")");
  Json manifest{
      {"format", kFormat}, {"version", kVersion}, {"iteration", iteration}, {"files", Json::array()}};
  const auto list = [&](const std::string& name) {
    manifest["files"].push_back(
        Json{{"name", name}, {"size", fs::file_size(work / name)}, {"xxh64", hash_file(work / name)}});
  };
  for (const FileGroup& group : groups) {
    write_group(work / group.file, group, prepare);
    list(group.file);
  }
  for (const TextFile& text : texts) {
    write_text(work / text.file, text.text);
    list(text.file);
  }
  write_text(work / kState, state);
  list(std::string(kState));
  write_text(work / kManifest, manifest.dump(1) + "\n");
  replace_folder(work, folder);
  guard.keep();
  write_text(dir / kLatest, std::to_string(iteration));

  if (keep_last <= 0) return;
  // The one just written stays whatever its number: training may have gone back to an older iteration on
  // purpose.
  std::vector<std::int64_t> others = complete_iterations(dir);
  others.erase(std::remove(others.begin(), others.end(), iteration), others.end());
  const auto kept = std::min(others.size(), static_cast<std::size_t>(keep_last - 1));
  for (std::size_t i = 0; i + kept < others.size(); ++i) remove_checkpoint(dir / folder_name(others[i]));
}

std::vector<std::int64_t> complete_iterations(const fs::path& dir) {
  std::vector<std::int64_t> iterations;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const auto iteration = iteration_of(entry.path().filename().string());
    if (iteration && fs::exists(entry.path() / kManifest, ignored)) iterations.push_back(*iteration);
  }
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

Checkpoint load(const fs::path& dir, std::optional<std::int64_t> iteration) {
  const fs::path folder = dir.has_filename() ? dir : dir.parent_path();
  if (const auto own = iteration_of(folder.filename().string());
      own && !iteration && fs::exists(folder / kManifest))
    return load(folder.parent_path(), own);
  const auto found = complete_iterations(dir);
  check_user(!found.empty(), dir.string(), ": holds no complete checkpoint");
  check_user(!iteration || std::binary_search(found.begin(), found.end(), *iteration), dir.string(),
             ": holds no complete checkpoint of iteration ", iteration.value_or(0), ", only of ",
             join(found));
  Checkpoint checkpoint;
  checkpoint.iteration_ = iteration.value_or(found.back());
  if (!iteration) checkpoint.note_ = note_about(dir, found.back());
  checkpoint.folder_ = dir / folder_name(checkpoint.iteration_);
  const fs::path file = checkpoint.folder_ / kManifest;
  const Json manifest = bridge::read_json(file);
  if (!manifest.is_object() || manifest.value("format", Json()) != kFormat)
    damaged(file, "is no mgfl checkpoint's manifest");
  check_user(manifest.value("version", Json()) == kVersion, file.string(), ": has version ",
             manifest.value("version", Json()).dump(), ", but this mgfl reads version ", kVersion);
  if (manifest.value("iteration", Json()) != checkpoint.iteration_)
    damaged(file,
            concat("is of iteration ", manifest.value("iteration", Json()).dump(), ", not of its folder's"));
  const Json files = manifest.value("files", Json());
  if (!files.is_array()) damaged(file, "has no list of files");
  bool has_state = false;
  for (const Json& entry : files) {
    const std::string name = check_file(checkpoint.folder_, entry);
    if (name == kState) {
      checkpoint.state_ = bridge::read_text(checkpoint.folder_ / name);
      has_state = true;
    } else if (name.ends_with(".safetensors")) {
      checkpoint.files_.emplace_back(checkpoint.folder_ / name);
    }
  }
  if (!has_state) damaged(file, concat("does not list ", kState));
  return checkpoint;
}

}  // namespace mgfl::checkpoint

#include "policies/checkpoint/safetensors.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
#include "policies/bridge/json.hpp"
#include "policies/checkpoint/preload_tensors.hpp"

namespace mgfl::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the reference reader's own limit
constexpr std::int64_t kWindow = 32 << 20;         // bytes copied at a time while writing
constexpr std::size_t kLengthBytes = 8;

struct Dtype {
  std::string_view name;
  int bits;
  std::optional<at::ScalarType> type;  // none: known to the format, not to mgfl
};

constexpr Dtype kDtypes[] = {
    {"F64", 64, at::kDouble},         {"F32", 32, at::kFloat},      {"F16", 16, at::kHalf},
    {"BF16", 16, at::kBFloat16},      {"I64", 64, at::kLong},       {"I32", 32, at::kInt},
    {"I16", 16, at::kShort},          {"I8", 8, at::kChar},         {"U8", 8, at::kByte},
    {"BOOL", 8, at::kBool},           {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},        {"C64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},     {"F8_E8M0", 8, std::nullopt}, {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt}, {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
};

const Dtype* find_dtype(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& d) { return d.name == name; });
  return found == std::end(kDtypes) ? nullptr : found;
}

// Bytes of shape x bits, or none when that is no whole number of bytes or does not fit 63 bits.
std::optional<std::uint64_t> byte_size(std::span<const std::int64_t> shape, int bits) {
  constexpr auto kLimit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  // A zero anywhere makes the product zero, but the other dimensions must still be sound.
  std::uint64_t product = static_cast<std::uint64_t>(bits);
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
      continue;
    }
    if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(size), &product) || product > kLimit)
      return std::nullopt;
  }
  if (empty) return 0;
  if (product % 8 != 0) return std::nullopt;
  return product / 8;
}

// A whole number of at most 63 bits, as the format demands of dimensions and offsets: no reals, strings or
// booleans.
std::optional<std::int64_t> whole_number(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

TensorEntry read_entry(const std::string& file, const std::string& name, const Json& fields,
                       std::uint64_t data_size) {
  const auto fail = [&](const auto&... parts) -> void {
    throw UserError(
        concat(file, ": tensor \"", name, "\": ", parts..., "; the file is damaged or no safetensors file"));
  };
  if (!fields.is_object()) fail("its entry is no JSON object");
  TensorEntry entry;
  entry.name = name;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  for (const auto& [key, value] : fields.items()) {
    if (key == "dtype") {
      if (!value.is_string()) fail("dtype is ", value.dump(), ", expected a name like \"F32\"");
      entry.dtype = value.get<std::string>();
      has_dtype = true;
    } else if (key == "shape") {
      if (!value.is_array()) fail("shape is ", value.dump(), ", expected a list of whole numbers");
      for (const Json& size : value) {
        const auto number = whole_number(size);
        if (!number)
          fail("shape ", value.dump(), " holds ", size.dump(), ", expected whole numbers of 0 or more");
        entry.shape.push_back(*number);
      }
      has_shape = true;
    } else if (key == "data_offsets") {
      if (!value.is_array() || value.size() != 2 || !whole_number(value[0]) || !whole_number(value[1]))
        fail("data_offsets is ", value.dump(), ", expected two whole numbers");
      entry.begin = static_cast<std::uint64_t>(*whole_number(value[0]));
      entry.end = static_cast<std::uint64_t>(*whole_number(value[1]));
      has_offsets = true;
    } else {
      fail("unknown key \"", key, "\"");
    }
  }
  if (!has_dtype) fail("dtype is missing");
  if (!has_shape) fail("shape is missing");
  if (!has_offsets) fail("data_offsets is missing");
  const Dtype* dtype = find_dtype(entry.dtype);
  if (dtype == nullptr) fail("unknown dtype \"", entry.dtype, "\"");
  if (entry.begin > entry.end || entry.end > data_size)
    fail("data_offsets [", entry.begin, ", ", entry.end, "] do not lie in the ", data_size, " data bytes");
  const auto bytes = byte_size(entry.shape, dtype->bits);
  if (!bytes)
    fail("shape [", join(entry.shape), "] of ", entry.dtype, " is no whole number of bytes below 2^63");
  if (*bytes != entry.end - entry.begin)
    fail("data_offsets [", entry.begin, ", ", entry.end, "] span ", entry.end - entry.begin,
         " bytes, but shape [", join(entry.shape), "] of ", entry.dtype, " needs ", *bytes);
  return entry;
}

std::string system_reason(int error) { return std::generic_category().message(error); }

}  // namespace

std::string_view safetensors_dtype_name(at::ScalarType dtype) {
  for (const Dtype& known : kDtypes)
    if (known.type == dtype) return known.name;
  throw UserError(concat("dtype ", c10::toString(dtype), " cannot be stored in a safetensors file"));
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::string file = path_.string();
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  const int open_error = errno;
  check_user(descriptor >= 0, file, ": cannot be opened (", system_reason(open_error), ")");
  struct stat status {};
  const bool sized = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = sized ? static_cast<std::uint64_t>(status.st_size) : 0;
  int map_error = 0;
  if (size >= kLengthBytes) {
    // Private and writable: a stray write changes a page of this process, it neither faults nor reaches the
    // file.
    void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
    map_error = errno;
    if (mapped != MAP_FAILED) {
      mapping_ = mapped;
      mapping_size_ = size;
    }
  }
  ::close(descriptor);
  check_user(sized, file, ": is no regular file");
  check_user(size >= kLengthBytes, file, ": has ", size,
             " bytes, too few for a safetensors file; it is cut short");
  check_run(mapping_ != nullptr, file, ": cannot be mapped into memory (", system_reason(map_error), ")");

  // From here on the mapping must be given back when a check throws: a constructor that throws runs no
  // destructor.
  struct Unmap {
    SafetensorsFile* self;
    ~Unmap() {
      if (self != nullptr) ::munmap(self->mapping_, self->mapping_size_);
    }
  } unmap{this};

  std::uint64_t header_size = 0;
  std::memcpy(&header_size, mapping_, kLengthBytes);
  check_user(header_size <= kMaxHeader, file, ": says its header has ", header_size,
             " bytes, more than the limit of ", kMaxHeader, "; it is damaged or no safetensors file");
  check_user(header_size <= size - kLengthBytes, file, ": says its header has ", header_size,
             " bytes, but only ", size - kLengthBytes, " follow; it is cut short");
  data_offset_ = kLengthBytes + header_size;
  const std::uint64_t data_size = size - data_offset_;
  const std::string_view text(static_cast<const char*>(mapping_) + kLengthBytes, header_size);
  check_user(!text.empty() && text.front() == '{', file,
             ": its header does not begin with '{'; it is no safetensors file");
  const Json header = bridge::parse_json(text, file + " (header)");

  for (const auto& [name, fields] : header.items()) {
    if (name == "__metadata__") {
      check_user(fields.is_object(), file, ": __metadata__ is no JSON object");
      for (const auto& [key, value] : fields.items()) {
        check_user(value.is_string(), file, ": __metadata__ entry \"", key, "\" is ", value.dump(),
                   ", expected a string");
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    entries_.push_back(read_entry(file, name, fields, data_size));
  }
  std::sort(entries_.begin(), entries_.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  std::string_view previous;
  for (const TensorEntry& entry : entries_) {
    check_user(entry.begin >= covered, file, ": tensor \"", entry.name, "\" begins at byte ", entry.begin,
               " and overlaps \"", previous, "\", which ends at ", covered, "; the file is damaged");
    check_user(entry.begin == covered, file, ": bytes ", covered, " to ", entry.begin, " before tensor \"",
               entry.name, "\" belong to no tensor; the file is damaged");
    covered = entry.end;
    previous = entry.name;
  }
  check_user(covered == data_size, file, ": the last ", data_size - covered, " of ", data_size,
             " data bytes belong to no tensor; the file is damaged");
  for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
  unmap.self = nullptr;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_size_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_size_(other.mapping_size_),
      data_offset_(other.data_offset_),
      entries_(std::move(other.entries_)),
      index_(std::move(other.index_)),
      metadata_(std::move(other.metadata_)) {}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const TensorEntry& entry : entries_) names.push_back(entry.name);
  return names;
}

const TensorEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = index_.find(name);
  check_user(found != index_.end(), path_.string(), ": has no tensor \"", name, "\"");
  return entries_[found->second];
}

at::ScalarType SafetensorsFile::dtype(const std::string& name) const {
  const TensorEntry& found = entry(name);
  const Dtype* dtype = find_dtype(found.dtype);
  check_user(dtype->type.has_value(), path_.string(), ": tensor \"", name, "\" has dtype ", found.dtype,
             ", which mgfl cannot read; convert the model to BF16, F16 or F32 first");
  return *dtype->type;
}

Tensor SafetensorsFile::tensor(const std::string& name) const {
  const TensorEntry& found = entry(name);
  const at::ScalarType type = dtype(name);
  char* bytes = const_cast<char*>(data()) + found.begin;
  if (found.begin == found.end) return empty(found.shape, type);
  if (reinterpret_cast<std::uintptr_t>(bytes) % c10::elementSize(type) == 0)
    return from_blob(bytes, found.shape, type);
  // The format does not promise aligned data; kernels need it.
  Tensor copy = empty(found.shape, type);
  std::memcpy(copy.mutable_data_ptr(), bytes, found.end - found.begin);
  return copy;
}

void SafetensorsFile::release(const std::string& name) const {
  const TensorEntry& found = entry(name);
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(data() + found.begin);
  const auto first = (start + page - 1) / page * page;  // whole pages of this tensor alone
  const auto last = (start + (found.end - found.begin)) / page * page;
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

std::uint64_t tensor_bytes(const TensorSpec& spec) {
  const auto bytes = byte_size(spec.shape, static_cast<int>(8 * c10::elementSize(spec.dtype)));
  check_user(bytes.has_value(), "tensor \"", spec.name, "\" of shape [", join(spec.shape),
             "] has no sensible size");
  return *bytes;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::span<const TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)) {
  // Wide elements first, so that every tensor is aligned in the file.
  std::vector<const TensorSpec*> order;
  for (const TensorSpec& spec : specs) order.push_back(&spec);
  std::stable_sort(order.begin(), order.end(), [](const TensorSpec* a, const TensorSpec* b) {
    return c10::elementSize(a->dtype) > c10::elementSize(b->dtype);
  });
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + Json(metadata).dump();
  std::uint64_t offset = 0;
  for (const TensorSpec* spec : order) {
    const std::uint64_t end = offset + tensor_bytes(*spec);
    check_run(spec->name != "__metadata__" && slots_.emplace(spec->name, Slot{*spec, offset, false}).second,
              path_.string(), ": tensor name \"", spec->name, "\" is declared twice, or reserved");
    if (header.size() > 1) header += ',';
    header += Json(spec->name).dump() + ":" +
              Json{{"dtype", safetensors_dtype_name(spec->dtype)},
                   {"shape", spec->shape},
                   {"data_offsets", {offset, end}}}
                  .dump();
    offset = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  check_run(header.size() <= kMaxHeader, path_.string(), ": the header would have ", header.size(),
            " bytes, more than the format's ", kMaxHeader);
  for (auto& [name, slot] : slots_) slot.offset += kLengthBytes + header.size();

  const auto aside = temporary_sibling(path_);
  output_ = std::make_unique<OutputFile>(aside);
  guard_ = std::make_unique<FolderGuard>(aside);
  const std::uint64_t length = header.size();
  output_->write_at(&length, kLengthBytes, 0);
  output_->write_at(header.data(), header.size(), kLengthBytes);
}

SafetensorsWriter::~SafetensorsWriter() = default;

SafetensorsWriter::Slot& SafetensorsWriter::take_slot(const std::string& name, const Tensor& values) {
  const auto found = slots_.find(name);
  check_run(found != slots_.end(), path_.string(), ": tensor \"", name, "\" was not declared");
  Slot& slot = found->second;
  check_run(!slot.written, path_.string(), ": tensor \"", name, "\" is written twice");
  const auto element = static_cast<std::uint64_t>(c10::elementSize(slot.spec.dtype));
  check_run(static_cast<std::uint64_t>(values.numel()) * element == tensor_bytes(slot.spec), path_.string(),
            ": tensor \"", name, "\" is declared as [", join(slot.spec.shape),
            "], but its values have the shape [", join(values.sizes()), "]");
  slot.written = true;
  return slot;
}

void SafetensorsWriter::write(const std::string& name, const Tensor& values) {
  const std::pair<std::string, Tensor> one[] = {{name, values}};
  write(one);
}

void SafetensorsWriter::write(std::span<const std::pair<std::string, Tensor>> tensors) {
  std::vector<Tensor> pieces;  // in the file's dtypes, where they were computed
  std::vector<std::uint64_t> places;
  std::int64_t waiting = 0;  // bytes of `pieces`
  const auto flush = [&] {
    const std::vector<Tensor> loaded = preload_tensors(pieces, /*non_blocking=*/true);
    for (std::size_t i = 0; i < loaded.size(); ++i)
      output_->write_at(loaded[i].const_data_ptr(), loaded[i].nbytes(), places[i]);
    pieces.clear();
    places.clear();
    waiting = 0;
  };
  for (const auto& [name, values] : tensors) {
    const Slot& slot = take_slot(name, values);
    // A dimension in front of all others lets one loop serve scalars, vectors and views alike.
    const Tensor rows = values.dim() == 0 ? values.unsqueeze(0) : values;
    if (rows.numel() == 0) continue;
    const std::int64_t count = rows.size(0);
    const std::int64_t row_bytes = static_cast<std::int64_t>(tensor_bytes(slot.spec)) / count;
    const std::int64_t step = std::max<std::int64_t>(1, kWindow / row_bytes);
    for (std::int64_t row = 0; row < count; row += step) {
      const std::int64_t taken = std::min(step, count - row);
      if (waiting > 0 && waiting + taken * row_bytes > kWindow) flush();
      pieces.push_back(rows.narrow(0, row, taken).to(slot.spec.dtype));
      places.push_back(slot.offset + static_cast<std::uint64_t>(row * row_bytes));
      waiting += taken * row_bytes;
    }
  }
  flush();
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_)
    check_run(slot.written, path_.string(), ": tensor \"", name, "\" was declared but never written");
  const auto aside = output_->path();
  output_->finish();
  std::error_code error;
  std::filesystem::rename(aside, path_, error);
  check_run(!error, path_.string(), ": cannot be put in place (", error.message(), ")");
  guard_->keep();
  sync_folder(path_.parent_path());
}

void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, Tensor>> tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, values] : tensors)
    specs.push_back({name, values.scalar_type(), values.sizes().vec()});
  SafetensorsWriter writer(path, specs);
  writer.write(tensors);
  writer.finish();
}

}  // namespace mgfl::checkpoint

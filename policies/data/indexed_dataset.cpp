#include "policies/data/indexed_dataset.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <type_traits>
#include <utility>

#include "mgfl/base/error.hpp"
#include "policies/data/mapped_file.hpp"

namespace mgfl::data {

static_assert(std::endian::native == std::endian::little,
              "mgfl: .bin/.idx files are little endian, as are the machines read on");

namespace {

// magic (9), version (8), dtype code (1), number of sequences (8), number of document indices (8)
constexpr std::array<char, 9> magic{'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::uint64_t version = 1;
constexpr std::size_t header_bytes = 34;

// The arrays of an .idx file lie at odd addresses.
template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Calls `f` with a value of the C++ type of `dtype`.
template <class F>
auto with_type(TokenDtype dtype, F&& f) {
  switch (dtype) {
    case TokenDtype::uint8:
      return f(std::uint8_t{});
    case TokenDtype::int8:
      return f(std::int8_t{});
    case TokenDtype::int16:
      return f(std::int16_t{});
    case TokenDtype::int32:
      return f(std::int32_t{});
    case TokenDtype::int64:
      return f(std::int64_t{});
    case TokenDtype::uint16:
      return f(std::uint16_t{});
  }
  throw RunError("A token dtype was made from an unknown number.");
}

}  // namespace

std::int64_t item_size(TokenDtype dtype) {
  return with_type(dtype, [](auto type) { return static_cast<std::int64_t>(sizeof type); });
}

std::string_view name_of(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::uint8:
      return "uint8";
    case TokenDtype::int8:
      return "int8";
    case TokenDtype::int16:
      return "int16";
    case TokenDtype::int32:
      return "int32";
    case TokenDtype::int64:
      return "int64";
    case TokenDtype::uint16:
      return "uint16";
  }
  throw RunError("A token dtype was made from an unknown number.");
}

TokenDtype optimal_dtype(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenDtype::uint16 : TokenDtype::int32;
}

std::vector<std::int64_t> sequence_pointers(std::span<const std::int32_t> lengths, std::int64_t item_size) {
  std::vector<std::int64_t> pointers;
  pointers.reserve(lengths.size());
  std::int64_t bytes = 0;
  for (const std::int64_t length : lengths) {
    pointers.push_back(bytes);
    bytes += length * item_size;
  }
  return pointers;
}

struct IndexedDataset::Mapping {
  explicit Mapping(const std::string& name) : prefix(name), idx(name + ".idx"), bin(name + ".bin") {
    read_header();
    check_pointers();
    check_documents();
  }

  void read_header() {
    const std::string file = prefix + ".idx";
    const auto bytes = idx.bytes();
    check_user(bytes.size() >= header_bytes, file, " has ", bytes.size(),
               " bytes, but its header alone takes ", header_bytes,
               "; it is cut short or not an index, write it anew.");
    check_user(std::memcmp(bytes.data(), magic.data(), magic.size()) == 0, file,
               " does not begin with MMIDIDX, so it is not an index of a Megatron data set; name the prefix "
               "of one.");
    const auto found_version = load<std::uint64_t>(bytes.data() + 9);
    check_user(found_version == version, file, " has version ", found_version, ", but only version ", version,
               " can be read; write it anew.");
    const int code = load<std::uint8_t>(bytes.data() + 17);
    check_user(code != 6 && code != 7, file, " holds floating-point numbers (dtype code ", code,
               "), but token ids must be whole; write it anew with an integer dtype.");
    check_user((code >= 1 && code <= 5) || code == 8, file, " has dtype code ", code,
               ", but codes are 1 to 8; it is damaged, write it anew.");
    dtype = static_cast<TokenDtype>(code);
    const auto s = load<std::uint64_t>(bytes.data() + 18), d = load<std::uint64_t>(bytes.data() + 26);
    const std::uint64_t size = bytes.size();
    // Bounding both counts by the file's size first keeps the sum below from wrapping.
    const bool plausible = s <= size / 12 && d <= size / 8;
    const std::uint64_t needed = header_bytes + 12 * s + 8 * d;
    check_user(plausible && size >= needed, file, " has ", size, " bytes, but ", s, " sequences and ", d,
               " document indices take ", plausible ? concat(needed) : "more",
               "; it is cut short, write it anew.");
    // Multimodal sets end with one more byte for each sequence, which says nothing about tokens.
    check_user(size == needed || size == needed + s, file, " has ", size, " bytes, but ", s,
               " sequences and ", d, " document indices take ", needed, "; it is damaged, write it anew.");
    check_user(s > 0 && d > 1, file, " lists ", s, " sequences in ", d == 0 ? 0 : d - 1,
               " documents, so there is nothing to read; write it anew with data.");
    num_sequences = static_cast<std::int64_t>(s);
    num_documents = static_cast<std::int64_t>(d) - 1;
    lengths = bytes.data() + header_bytes;
    pointers = lengths + 4 * s;
    documents = pointers + 8 * s;
  }

  void check_pointers() const {
    const std::string file = prefix + ".idx";
    const std::int64_t item = item_size(dtype);
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < num_sequences; ++i) {
      const std::int64_t length = load<std::int32_t>(lengths + 4 * i),
                         pointer = load<std::int64_t>(pointers + 8 * i);
      check_user(length >= 0, file, " gives sequence ", i, " a length of ", length,
                 " tokens; it is damaged, write it anew.");
      check_user(pointer == next, file, " puts sequence ", i, " at byte ", pointer,
                 ", but the sequences before it end at byte ", next, "; it is damaged, write it anew.");
      next += length * item;
    }
    check_user(static_cast<std::int64_t>(bin.bytes().size()) == next, prefix, ".bin has ", bin.bytes().size(),
               " bytes, but ", file, " counts ", next,
               "; they do not belong together or the first is cut short, write both anew.");
  }

  void check_documents() const {
    const std::string file = prefix + ".idx";
    std::int64_t last = load<std::int64_t>(documents);
    check_user(last == 0, file, " begins its first document at sequence ", last,
               " in place of 0; it is damaged, write it anew.");
    for (std::int64_t i = 1; i <= num_documents; ++i) {
      const auto next = load<std::int64_t>(documents + 8 * i);
      check_user(next >= last, file, " has document index ", next, " after ", last,
                 ", but they must not fall; it is damaged, write it anew.");
      last = next;
    }
    check_user(last == num_sequences, file, " ends its last document at sequence ", last, ", but has ",
               num_sequences, " sequences; it is damaged, write it anew.");
  }

  std::string prefix;
  MappedFile idx, bin;
  TokenDtype dtype{};
  std::int64_t num_sequences = 0, num_documents = 0;
  const std::byte *lengths = nullptr, *pointers = nullptr, *documents = nullptr;
};

IndexedDataset::IndexedDataset(const std::string& prefix)
    : mapping_(std::make_shared<const Mapping>(prefix)) {}

const std::string& IndexedDataset::prefix() const { return mapping_->prefix; }
TokenDtype IndexedDataset::dtype() const { return mapping_->dtype; }
std::int64_t IndexedDataset::num_sequences() const { return mapping_->num_sequences; }
std::int64_t IndexedDataset::num_documents() const { return mapping_->num_documents; }
std::int64_t IndexedDataset::sequence_length(std::int64_t i) const {
  check_run(i >= 0 && i < num_sequences(), "Sequence ", i, " of ", prefix(), " was asked for, but it has ",
            num_sequences(), ".");
  return load<std::int32_t>(mapping_->lengths + 4 * i);
}
std::int64_t IndexedDataset::sequence_pointer(std::int64_t i) const {
  check_run(i >= 0 && i < num_sequences(), "Sequence ", i, " of ", prefix(), " was asked for, but it has ",
            num_sequences(), ".");
  return load<std::int64_t>(mapping_->pointers + 8 * i);
}
std::int64_t IndexedDataset::document_index(std::int64_t i) const {
  check_run(i >= 0 && i <= num_documents(), "Document ", i, " of ", prefix(), " was asked for, but it has ",
            num_documents(), ".");
  return load<std::int64_t>(mapping_->documents + 8 * i);
}
std::span<const std::byte> IndexedDataset::raw_tokens() const { return mapping_->bin.bytes(); }

std::vector<std::int64_t> IndexedDataset::get(std::int64_t sequence, std::int64_t offset,
                                              std::optional<std::int64_t> length) const {
  std::vector<std::int64_t> tokens;
  append_to(tokens, sequence, offset, length);
  return tokens;
}

void IndexedDataset::append_to(std::vector<std::int64_t>& tokens, std::int64_t sequence, std::int64_t offset,
                               std::optional<std::int64_t> length) const {
  const std::int64_t available = sequence_length(sequence);
  const std::int64_t count = length.value_or(available - offset);
  check_run(offset >= 0 && count >= 0 && offset <= available && count <= available - offset, "Tokens ",
            offset, " to ", offset + count, " of sequence ", sequence, " of ", prefix(),
            " were asked for, but it has ", available, ".");
  with_type(dtype(), [&](auto type) {
    using T = decltype(type);
    const auto item = static_cast<std::int64_t>(sizeof(T));
    const std::byte* from = mapping_->bin.bytes().data() + sequence_pointer(sequence) + offset * item;
    const std::size_t old = tokens.size();
    tokens.resize(old + static_cast<std::size_t>(count));
    for (std::int64_t t = 0; t < count; ++t)
      tokens[old + static_cast<std::size_t>(t)] = load<T>(from + t * item);
  });
}

IndexedDatasetBuilder::IndexedDatasetBuilder(std::string prefix, TokenDtype dtype)
    : prefix_(std::move(prefix)), dtype_(dtype), bin_(partial(".bin"), std::ios::binary | std::ios::trunc) {
  check_user(bin_.is_open(), "Cannot write ", partial(".bin"), ": ", std::strerror(errno), ".");
}

IndexedDatasetBuilder::~IndexedDatasetBuilder() {
  if (finalized_) return;
  bin_.close();
  std::error_code ignored;  // a destructor has nobody to tell
  std::filesystem::remove(partial(".bin"), ignored);
  std::filesystem::remove(partial(".idx"), ignored);
}

void IndexedDatasetBuilder::write(std::span<const std::byte> bytes) {
  check_run(!finalized_, "The data set ", prefix_, " was finalized and takes nothing more.");
  bin_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  check_run(bin_.good(), "Writing ", bytes.size(), " bytes to ", partial(".bin"),
            " failed: ", std::strerror(errno), ".");
}

void IndexedDatasetBuilder::add_item(std::span<const std::int64_t> tokens) {
  check_user(tokens.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
             "A sequence for ", prefix_, " has ", tokens.size(),
             " tokens, but at most 2147483647 fit; cut it.");
  with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    std::vector<T> stored;
    stored.reserve(tokens.size());
    for (const std::int64_t id : tokens) {
      check_user(std::in_range<T>(id), "Token id ", id, " does not fit ", name_of(dtype_), ", the dtype of ",
                 prefix_, "; choose a wider one.");
      stored.push_back(static_cast<T>(id));
    }
    write(std::as_bytes(std::span<const T>(stored)));
  });
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
}

void IndexedDatasetBuilder::end_document() {
  document_indices_.push_back(static_cast<std::int64_t>(lengths_.size()));
}

void IndexedDatasetBuilder::add_document(std::span<const std::int64_t> tokens,
                                         std::span<const std::int32_t> lengths) {
  std::int64_t total = 0;
  for (const std::int32_t length : lengths) {
    check_user(length >= 0, "A document for ", prefix_, " has a sequence of ", length, " tokens.");
    total += length;
  }
  check_user(total == static_cast<std::int64_t>(tokens.size()), "A document for ", prefix_, " has ",
             tokens.size(), " tokens, but its sequences take ", total, ".");
  std::size_t from = 0;
  for (const std::int32_t length : lengths) {
    add_item(tokens.subspan(from, static_cast<std::size_t>(length)));
    from += static_cast<std::size_t>(length);
  }
  end_document();
}

void IndexedDatasetBuilder::add_index(const std::string& prefix) {
  const IndexedDataset other(prefix);
  check_user(other.dtype() == dtype_, prefix, " holds ", name_of(other.dtype()), ", but ", prefix_, " holds ",
             name_of(dtype_), "; only sets of one dtype can be merged.");
  write(other.raw_tokens());
  const auto shift = static_cast<std::int64_t>(lengths_.size());
  for (std::int64_t i = 0; i < other.num_sequences(); ++i)
    lengths_.push_back(static_cast<std::int32_t>(other.sequence_length(i)));
  for (std::int64_t i = 1; i <= other.num_documents(); ++i)
    document_indices_.push_back(shift + other.document_index(i));
}

void IndexedDatasetBuilder::finalize() {
  const auto sequences = static_cast<std::int64_t>(lengths_.size());
  check_user(document_indices_.back() == sequences, "The last ", sequences - document_indices_.back(),
             " sequences of ", prefix_, " are in no document; end it before finalizing.");
  check_user(document_indices_.size() > 1, "No document was added to ", prefix_,
             "; there is nothing to write.");
  write({});
  bin_.close();
  check_run(!bin_.fail(), "Closing ", partial(".bin"), " failed: ", std::strerror(errno), ".");

  std::ofstream idx(partial(".idx"), std::ios::binary | std::ios::trunc);
  const auto put = [&idx](const auto* values, std::size_t count) {
    idx.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * sizeof *values));
  };
  const std::uint64_t counts[] = {lengths_.size(), document_indices_.size()};
  const auto pointers = sequence_pointers(lengths_, item_size(dtype_));
  put(magic.data(), magic.size());
  put(&version, 1);
  put(&dtype_, 1);
  put(counts, 2);
  put(lengths_.data(), lengths_.size());
  put(pointers.data(), pointers.size());
  put(document_indices_.data(), document_indices_.size());
  idx.close();
  check_run(!idx.fail(), "Writing ", partial(".idx"), " failed: ", std::strerror(errno), ".");
  std::error_code bin_error, idx_error;
  std::filesystem::rename(partial(".bin"), prefix_ + ".bin", bin_error);
  check_run(!bin_error, "Cannot rename ", partial(".bin"), ": ", bin_error.message(), ".");
  std::filesystem::rename(partial(".idx"), prefix_ + ".idx", idx_error);
  check_run(!idx_error, "Cannot rename ", partial(".idx"), ": ", idx_error.message(), ".");
  finalized_ = true;
}

}  // namespace mgfl::data

/// Megatron's .bin/.idx data set: sequences of token ids grouped to documents, read through a memory map, and
/// its writer.
// Mirrors megatron.core.datasets.indexed_dataset.IndexedDataset and IndexedDatasetBuilder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mgfl::data {

/// How a token id is stored; the numbers are those in the .idx file. The file format's two float types hold
/// no ids.
enum class TokenDtype : std::uint8_t { uint8 = 1, int8 = 2, int16 = 3, int32 = 4, int64 = 5, uint16 = 8 };

/// Bytes of one token id.
std::int64_t item_size(TokenDtype dtype);
/// numpy's name of the type.
std::string_view name_of(TokenDtype dtype);
/// Megatron's choice for a vocabulary: uint16 below 65500 tokens, else int32.
TokenDtype optimal_dtype(std::int64_t vocab_size);

/// Byte offset of each sequence in the .bin file; 64-bit throughout.
std::vector<std::int64_t> sequence_pointers(std::span<const std::int32_t> lengths, std::int64_t item_size);

/// A sequence is what one `add_item` wrote; a document is one or more sequences. Megatron's GPT data sets
/// count sequences. Copies share one mapping; reading is safe from several threads.
class IndexedDataset {
 public:
  /// Opens PREFIX.idx and PREFIX.bin and checks that both are whole and belong together; UserError names the
  /// file.
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const;
  TokenDtype dtype() const;
  std::int64_t num_sequences() const;
  std::int64_t num_documents() const;
  /// Tokens in sequence `i`.
  std::int64_t sequence_length(std::int64_t i) const;
  /// Byte offset of sequence `i` in the .bin file.
  std::int64_t sequence_pointer(std::int64_t i) const;
  /// The number of the first sequence of document `i`; for i = num_documents() the number of sequences.
  std::int64_t document_index(std::int64_t i) const;
  /// All tokens, one sequence after the other, as the .bin file holds them.
  std::span<const std::byte> raw_tokens() const;

  /// Tokens [offset, offset + length) of a sequence, by default up to its end. RunError outside the sequence.
  std::vector<std::int64_t> get(std::int64_t sequence, std::int64_t offset = 0,
                                std::optional<std::int64_t> length = {}) const;
  /// Adds the same tokens to the end of `tokens`.
  void append_to(std::vector<std::int64_t>& tokens, std::int64_t sequence, std::int64_t offset,
                 std::optional<std::int64_t> length) const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

/// Writes PREFIX.bin and PREFIX.idx. Both appear under their names in `finalize` alone; a builder that goes
/// away before leaves nothing behind and whatever had these names untouched.
class IndexedDatasetBuilder {
 public:
  IndexedDatasetBuilder(std::string prefix, TokenDtype dtype);
  IndexedDatasetBuilder(const IndexedDatasetBuilder&) = delete;
  IndexedDatasetBuilder& operator=(const IndexedDatasetBuilder&) = delete;
  ~IndexedDatasetBuilder();

  /// Appends one sequence. UserError when an id does not fit the dtype.
  void add_item(std::span<const std::int64_t> tokens);
  /// Closes the document to which the sequences since the last one belong.
  void end_document();
  /// Appends a document made of sequences of the given lengths.
  void add_document(std::span<const std::int64_t> tokens, std::span<const std::int32_t> lengths);
  /// Appends all sequences and documents of another data set of the same dtype.
  void add_index(const std::string& prefix);
  /// Writes the index and gives both files their names; the builder takes nothing more.
  void finalize();

 private:
  std::string partial(const char* suffix) const { return prefix_ + suffix + ".partial"; }
  void write(std::span<const std::byte> bytes);

  std::string prefix_;
  TokenDtype dtype_;
  std::ofstream bin_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_indices_{0};
  bool finalized_ = false;
};

}  // namespace mgfl::data

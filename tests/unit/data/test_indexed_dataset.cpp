#include "tests/support/doctest.hpp"

#include <cstring>

#include <nlohmann/json.hpp>

#include "policies/data/indexed_dataset.hpp"
#include "tests/unit/data/scratch.hpp"

using namespace mgfl::data;
using namespace mgfl::test;
using Ids = std::vector<std::int64_t>;

namespace {

const std::string folder = MGFL_TEST_DATA "/megatron/";

nlohmann::json fixture() {
  std::ifstream file(folder + "indexed_dataset.json");
  return nlohmann::json::parse(file);
}

// Two sequences of 3 and 2 int32 tokens, a document each: lengths at byte 34, pointers at 42, documents
// at 58.
std::string write_small(const Scratch& scratch) {
  const std::string prefix = scratch.path("small");
  IndexedDatasetBuilder builder(prefix, TokenDtype::int32);
  builder.add_item(Ids{1, 2, 3});
  builder.end_document();
  builder.add_item(Ids{4, 5});
  builder.end_document();
  builder.finalize();
  return prefix;
}

template <class T>
void overwrite(const std::string& path, std::size_t at, T value) {
  std::string bytes = bytes_of(path);
  std::memcpy(bytes.data() + at, &value, sizeof value);
  std::ofstream(path, std::ios::binary) << bytes;
}

void cut(const std::string& path, std::size_t size) { std::filesystem::resize_file(path, size); }

// What opening says after one change to a whole set.
template <class Damage>
std::string after(Damage damage) {
  const Scratch scratch;
  const std::string prefix = write_small(scratch);
  REQUIRE_NOTHROW(IndexedDataset{prefix});
  damage(prefix);
  return user_error([&] { IndexedDataset{prefix}; });
}

}  // namespace

TEST_CASE("Megatron's files read as Megatron reads them") {
  for (const std::string name : {"ids_int32", "ids_uint16"}) {
    const auto expected = fixture()[name];
    const IndexedDataset set(folder + name);
    CHECK(static_cast<int>(set.dtype()) == expected["dtype_code"].get<int>());
    CHECK(name_of(set.dtype()) == expected["dtype"].get<std::string>());
    const auto sequences = expected["sequences"].get<std::vector<Ids>>();
    REQUIRE(set.num_sequences() == static_cast<std::int64_t>(sequences.size()));
    for (std::int64_t i = 0; i < set.num_sequences(); ++i) {
      CHECK(set.get(i) == sequences[i]);
      CHECK(set.sequence_length(i) == expected["sequence_lengths"][i].get<std::int64_t>());
      CHECK(set.sequence_pointer(i) == expected["sequence_pointers"][i].get<std::int64_t>());
    }
    const auto documents = expected["document_indices"].get<Ids>();
    REQUIRE(set.num_documents() + 1 == static_cast<std::int64_t>(documents.size()));
    for (std::int64_t i = 0; i <= set.num_documents(); ++i) CHECK(set.document_index(i) == documents[i]);
    const auto slice = expected["slice_example"];
    CHECK(set.get(slice["sequence"], slice["offset"], slice["length"].get<std::int64_t>()) ==
          slice["tokens"].get<Ids>());
    CHECK(set.get(0, set.sequence_length(0)).empty());
    CHECK_THROWS_AS(set.get(0, 0, set.sequence_length(0) + 1), mgfl::RunError);
    CHECK_THROWS_AS(set.get(set.num_sequences()), mgfl::RunError);
  }
}

TEST_CASE("the builder writes Megatron's files byte for byte") {
  const Scratch scratch;
  for (const std::string name : {"ids_int32", "ids_uint16"}) {
    const auto expected = fixture()[name];
    IndexedDatasetBuilder builder(scratch.path(name),
                                  static_cast<TokenDtype>(expected["dtype_code"].get<int>()));
    for (std::size_t d = 0; d < expected["documents"].size(); ++d)
      builder.add_document(expected["documents"][d].get<Ids>(),
                           expected["sequences_of_each_document"][d].get<std::vector<std::int32_t>>());
    builder.finalize();
    for (const char* suffix : {".bin", ".idx"})
      CHECK(bytes_of(scratch.path(name) + suffix) == bytes_of(folder + name + suffix));
  }
}

TEST_CASE("every integer dtype keeps its extremes and refuses what does not fit") {
  const Scratch scratch;
  const auto check = [&](TokenDtype dtype, std::int64_t bytes, std::int64_t low, std::int64_t high) {
    CHECK(item_size(dtype) == bytes);
    const std::string prefix = scratch.path(std::string(name_of(dtype)));
    IndexedDatasetBuilder builder(prefix, dtype);
    builder.add_item(Ids{low, 7, high});
    if (bytes < 8) {
      CHECK(has(user_error([&] { builder.add_item(Ids{high + 1}); }), std::to_string(high + 1),
                name_of(dtype)));
      CHECK(has(user_error([&] { builder.add_item(Ids{low - 1}); }), std::to_string(low - 1)));
    }
    builder.end_document();
    builder.finalize();
    CHECK(IndexedDataset(prefix).get(0) == Ids{low, 7, high});
    CHECK(IndexedDataset(prefix).get(0, 1, 1) == Ids{7});
  };
  check(TokenDtype::uint8, 1, 0, 255);
  check(TokenDtype::int8, 1, -128, 127);
  check(TokenDtype::int16, 2, -32768, 32767);
  check(TokenDtype::uint16, 2, 0, 65535);
  check(TokenDtype::int32, 4, -2147483648LL, 2147483647);
  check(TokenDtype::int64, 8, INT64_MIN, INT64_MAX);
  CHECK(optimal_dtype(65499) == TokenDtype::uint16);
  CHECK(optimal_dtype(65500) == TokenDtype::int32);
}

TEST_CASE("byte pointers do not overflow 32 bits") {
  const std::vector<std::int32_t> lengths(3, 1500000000);
  CHECK(sequence_pointers(lengths, 4) == Ids{0, 6000000000, 12000000000});
}

TEST_CASE("files that are damaged or do not belong together are refused when opened") {
  const auto idx = [](const std::string& p) { return p + ".idx"; };
  CHECK(has(after([](auto& p) { cut(p + ".bin", 16); }), "small.bin", "20", "16"));
  CHECK(has(after([](auto& p) { std::ofstream(p + ".bin", std::ios::app) << "1234"; }), "small.bin", "20",
            "24"));
  CHECK(has(after([&](auto& p) { cut(idx(p), 34); }), "small.idx", "34", "82"));
  CHECK(has(after([&](auto& p) { cut(idx(p), 81); }), "small.idx", "81", "82"));
  CHECK(has(after([&](auto& p) { cut(idx(p), 20); }), "small.idx", "20", "34"));
  CHECK(has(after([&](auto& p) { cut(idx(p), 0); }), "small.idx", "0", "34"));
  CHECK(has(after([&](auto& p) { std::ofstream(idx(p), std::ios::app) << "1"; }), "small.idx", "83", "82"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 0, 'X'); }), "small.idx", "MMIDIDX"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 9, std::uint64_t{2}); }), "small.idx", "version 2"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 17, std::uint8_t{99}); }), "small.idx", "99"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 17, std::uint8_t{0}); }), "small.idx", "code 0"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 17, std::uint8_t{7}); }), "small.idx", "floating"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 17, std::uint8_t{8}); }), "small.idx", "12", "6"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 18, ~std::uint64_t{0}); }), "small.idx",
            "18446744073709551615"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 26, std::uint64_t{1} << 61); }), "small.idx",
            "2305843009213693952"));
  CHECK(
      has(after([&](auto& p) { overwrite(idx(p), 38, std::int32_t{-2}); }), "small.idx", "sequence 1", "-2"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 50, std::int64_t{8}); }), "small.idx", "sequence 1", "8",
            "12"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 58, std::int64_t{1}); }), "small.idx", "sequence 1"));
  CHECK(has(after([&](auto& p) { overwrite(idx(p), 66, std::int64_t{-1}); }), "small.idx", "-1"));
  CHECK(
      has(after([&](auto& p) { overwrite(idx(p), 74, std::int64_t{3}); }), "small.idx", "3", "2 sequences"));
  CHECK(has(after([](auto& p) { std::filesystem::remove(p + ".bin"); }), "small.bin"));
  CHECK(has(after([&](auto& p) { std::filesystem::remove(idx(p)); }), "small.idx"));

  // No sequences and no documents.
  const Scratch scratch;
  std::string empty = bytes_of(folder + "ids_int32.idx").substr(0, 34);
  std::memset(empty.data() + 18, 0, 16);
  empty[26] = 1;
  scratch.write("none.idx", empty + std::string(8, '\0'));
  scratch.write("none.bin", "");
  CHECK(has(user_error([&] { IndexedDataset{scratch.path("none")}; }), "none.idx", "0 sequences",
            "0 documents"));
}

TEST_CASE("sets merge with their documents shifted") {
  const Scratch scratch;
  const auto build = [&](const std::string& name, const std::vector<int>& sequences_of_documents) {
    IndexedDatasetBuilder builder(scratch.path(name), TokenDtype::uint16);
    std::int64_t id = 0;
    for (const int sequences : sequences_of_documents) {
      for (int s = 0; s < sequences; ++s, ++id) builder.add_item(Ids{id, id + 1});
      builder.end_document();
    }
    builder.finalize();
    return scratch.path(name);
  };
  const auto first = build("first", {2}), second = build("second", {1, 2});
  IndexedDatasetBuilder builder(scratch.path("both"), TokenDtype::uint16);
  builder.add_index(first);
  builder.add_index(second);
  builder.finalize();
  const IndexedDataset both(scratch.path("both"));
  Ids documents;
  for (std::int64_t i = 0; i <= both.num_documents(); ++i) documents.push_back(both.document_index(i));
  CHECK(documents == Ids{0, 2, 3, 5});
  CHECK(both.get(1) == Ids{1, 2});
  CHECK(both.get(2) == Ids{0, 1});
  CHECK(both.get(4) == Ids{2, 3});

  IndexedDatasetBuilder other(scratch.path("other"), TokenDtype::int32);
  CHECK(has(user_error([&] { other.add_index(first); }), "uint16", "int32", "first"));
}

TEST_CASE("empty sequences and documents are allowed") {
  const Scratch scratch;
  IndexedDatasetBuilder builder(scratch.path("gaps"), TokenDtype::int32);
  builder.add_item(Ids{});
  builder.end_document();
  builder.end_document();
  builder.add_item(Ids{9});
  builder.end_document();
  builder.finalize();
  const IndexedDataset set(scratch.path("gaps"));
  CHECK(set.num_documents() == 3);
  CHECK(set.get(0).empty());
  CHECK(set.get(1) == Ids{9});
}

TEST_CASE("an unfinished builder leaves nothing and harms nothing") {
  const Scratch scratch;
  { IndexedDatasetBuilder builder(scratch.path("none"), TokenDtype::int32); }
  CHECK(scratch.empty());
  const std::string prefix = write_small(scratch);
  const std::string before = bytes_of(prefix + ".bin");
  {
    IndexedDatasetBuilder builder(prefix, TokenDtype::int32);
    builder.add_item(Ids{1});
    CHECK(has(user_error([&] { builder.finalize(); }), "small", "1 sequences"));
  }
  CHECK(bytes_of(prefix + ".bin") == before);
  CHECK_NOTHROW(IndexedDataset{prefix});
  IndexedDatasetBuilder nothing(scratch.path("nothing"), TokenDtype::int32);
  CHECK(has(user_error([&] { nothing.finalize(); }), "nothing"));
  CHECK(has(user_error([&] { IndexedDatasetBuilder(scratch.path("no/such/folder"), TokenDtype::int32); }),
            "no/such/folder"));
}

// The reader against hand-made files, sound and damaged, and the writer against bytes counted by hand.
#include "policies/checkpoint/safetensors.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include "mgfl/base/xxh64.hpp"
#include "mgfl/tensor/factory.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/files.hpp"

namespace mgfl::checkpoint {
namespace {

using test::contains;
using test::error_of;
using test::TemporaryFolder;
using test::write_file;

std::string file_bytes(std::string_view header, std::string_view data) {
  const std::uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes.append(header).append(data);
}

std::string error_in(std::string_view header, std::string_view data) {
  TemporaryFolder folder;
  const auto path = write_file(folder / "x.safetensors", file_bytes(header, data));
  const std::string message = error_of([&] { SafetensorsFile file(path); });
  if (message != "(no error)") CHECK(contains(message, "x.safetensors"));
  return message;
}

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return concat("{\"a\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets, "}}");
}

Tensor floats(std::vector<float> values, std::vector<std::int64_t> shape) {
  Tensor tensor = empty(shape, at::kFloat);
  std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(float));
  return tensor;
}

std::vector<float> values_of(const Tensor& tensor) {
  const Tensor flat = tensor.to(at::kFloat).contiguous();
  const float* data = flat.const_data_ptr<float>();
  return {data, data + flat.numel()};
}

const std::string kZeros(64, '\0');
std::string_view zeros_of(std::size_t count) { return std::string_view(kZeros).substr(0, count); }

TEST_CASE("a sound file gives its tensors, whatever their order in the header") {
  TemporaryFolder folder;
  const float values[] = {1.5f, -2.0f};
  const auto path = write_file(
      folder / "x.safetensors",
      file_bytes(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"__metadata__":{"format":"pt"},)"
                 R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  )",
                 std::string_view(reinterpret_cast<const char*>(values), 8)));
  SafetensorsFile file(path);
  CHECK(file.names() == std::vector<std::string>{"a", "b"});
  CHECK(values_of(file.tensor("a")) == std::vector<float>{1.5f});
  CHECK(values_of(file.tensor("b")) == std::vector<float>{-2.0f});
  CHECK((file.dtype("a") == at::kFloat));
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.has("a"));
  CHECK_FALSE(file.has("c"));
  CHECK(contains(error_of([&] { file.tensor("c"); }), "has no tensor \"c\""));
}

TEST_CASE("writing into a read tensor never reaches the file") {
  TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  const std::pair<std::string, Tensor> tensors[] = {{"a", floats({1, 2}, {2})}};
  write_safetensors(path, tensors);
  {
    SafetensorsFile file(path);
    file.tensor("a").zero_();
  }
  CHECK(values_of(SafetensorsFile(path).tensor("a")) == std::vector<float>{1, 2});
}

TEST_CASE("I1: a repeated key is an error that names it") {
  const auto twice = error_in(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                              R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                              zeros_of(8));
  CHECK(contains(twice, "duplicate key \"a\""));
  CHECK(
      contains(error_in(R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", zeros_of(4)),
               "duplicate key \"shape\""));
  // The same key spelled with an escape is the same key.
  CHECK(contains(error_in(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                          R"("\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                          zeros_of(8)),
                 "duplicate key \"a\""));
}

TEST_CASE("I2: overlaps, holes and trailing bytes") {
  const auto two = [](std::string_view a, std::string_view b, std::size_t size,
                      std::string_view a_shape = "[1]", std::string_view b_shape = "[1]") {
    return error_in(concat("{\"a\":{\"dtype\":\"F32\",\"shape\":", a_shape, ",\"data_offsets\":", a,
                           "},\"b\":{\"dtype\":\"F32\",\"shape\":", b_shape, ",\"data_offsets\":", b, "}}"),
                    zeros_of(size));
  };
  CHECK(contains(two("[0,8]", "[4,12]", 12, "[2]", "[2]"), "overlaps \"a\""));
  CHECK(contains(two("[0,4]", "[0,4]", 4), "overlaps"));
  CHECK(contains(two("[0,4]", "[8,12]", 12), "belong to no tensor"));
  CHECK(contains(two("[4,8]", "[8,12]", 12), "belong to no tensor"));
  CHECK(two("[4,8]", "[0,4]", 8) == "(no error)");
  CHECK(contains(error_in(entry("F32", "[1]", "[0,4]"), zeros_of(8)), "last 4 of 8 data bytes"));
  CHECK(contains(error_in("{}", zeros_of(1)), "last 1 of 1"));
}

TEST_CASE("I3: offsets against shape and dtype") {
  CHECK(contains(error_in(entry("F32", "[1000,1000]", "[0,4]"), zeros_of(4)), "needs 4000000"));
  // 2^33 x 2^33 x 4 is 0 modulo 2^64.
  CHECK(contains(error_in(entry("F32", "[8589934592,8589934592]", "[0,0]"), ""), "below 2^63"));
  CHECK(contains(error_in(entry("F32", "[18446744073709551615]", "[0,4]"), zeros_of(4)), "whole numbers"));
  CHECK(contains(error_in(entry("F32", "[9223372036854775807,0]", "[0,0]"), ""), "below 2^63"));
  for (const char* offsets :
       {"[-4,0]", "[0,4.0]", "[0]", "[0,4,8]", "\"0\"", "[0,\"4\"]", "[true,4]", "{}", "null"})
    CHECK(contains(error_in(entry("F32", "[1]", offsets), zeros_of(4)), "two whole numbers"));
  CHECK(contains(error_in(entry("F32", "[1]", "[8,4]"), zeros_of(8)), "do not lie in"));
  CHECK(contains(error_in(entry("F32", "[1]", "[0,8]"), zeros_of(4)), "do not lie in"));
  CHECK(contains(error_in(entry("F32", "[1]", "[18446744073709551612,18446744073709551615]"), zeros_of(4)),
                 "two whole"));
  for (const char* shape : {"[-1]", "[1.0]", "[\"1\"]", "[null]", "[true]", "[[1]]"})
    CHECK(contains(error_in(entry("F32", shape, "[0,4]"), zeros_of(4)), "whole numbers"));
  CHECK(contains(error_in(entry("F32", "1", "[0,4]"), zeros_of(4)), "list of whole numbers"));
  CHECK(contains(error_in(entry("F99", "[1]", "[0,4]"), zeros_of(4)), "unknown dtype \"F99\""));
  CHECK(contains(error_in(entry("F4", "[3]", "[0,1]"), zeros_of(1)), "whole number of bytes"));
  CHECK(contains(error_in(R"({"a":{"dtype":"F32","shape":[1]}})", zeros_of(4)), "data_offsets is missing"));
  CHECK(contains(error_in(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", zeros_of(4)), "dtype is missing"));
  CHECK(contains(error_in(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", zeros_of(4)), "shape is missing"));
  CHECK(contains(error_in(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", zeros_of(4)),
                 "unknown key"));
  CHECK(contains(error_in(R"({"a":3})", ""), "no JSON object"));
  CHECK(contains(error_in(R"({"__metadata__":{"format":1}})", ""), "expected a string"));
}

TEST_CASE("I4: empty tensors, scalars, files without tensors") {
  TemporaryFolder folder;
  const auto path = write_file(folder / "x.safetensors",
                               file_bytes(R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},)"
                                          R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                                          R"("m":{"dtype":"F32","shape":[2,0],"data_offsets":[4,4]},)"
                                          R"("t":{"dtype":"I32","shape":[1],"data_offsets":[4,8]},)"
                                          R"("z":{"dtype":"BF16","shape":[0],"data_offsets":[8,8]}})",
                                          zeros_of(8)));
  SafetensorsFile file(path);
  CHECK(file.tensor("e").sizes().vec() == std::vector<std::int64_t>{0, 3});
  CHECK(file.tensor("s").dim() == 0);
  CHECK(file.tensor("s").numel() == 1);
  CHECK(file.tensor("z").numel() == 0);

  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& name : file.names()) tensors.emplace_back(name, file.tensor(name));
  write_safetensors(folder / "again.safetensors", tensors);
  SafetensorsFile again(folder / "again.safetensors");
  for (const auto& [name, tensor] : tensors) {
    CHECK(again.shape(name) == file.shape(name));
    CHECK((again.dtype(name) == file.dtype(name)));
    CHECK(again.tensor(name).equal(tensor));
  }
  CHECK(contains(error_in(entry("F32", "[1]", "[0,0]"), ""), "needs 4"));
  CHECK(error_in("{}", "") == "(no error)");
  write_safetensors(folder / "none.safetensors", {});
  CHECK(SafetensorsFile(folder / "none.safetensors").names().empty());
}

TEST_CASE("damaged headers are refused, never followed") {
  TemporaryFolder folder;
  const auto error_of_bytes = [&](std::string_view bytes) {
    const auto path = write_file(folder / "x.safetensors", bytes);
    return error_of([&] { SafetensorsFile file(path); });
  };
  CHECK(contains(error_of_bytes(""), "too few"));
  CHECK(contains(error_of_bytes("1234567"), "too few"));
  CHECK(contains(error_of_bytes(std::string("\x05\0\0\0\0\0\0\0{}", 10)), "only 2 follow"));
  CHECK(contains(error_of_bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}"), "more than the limit"));
  CHECK(contains(error_of_bytes(file_bytes("", "")), "does not begin with '{'"));
  CHECK(contains(error_of_bytes(file_bytes(" {}", "")), "does not begin with '{'"));
  CHECK(contains(error_of_bytes(file_bytes("[]", "")), "does not begin with '{'"));
  CHECK(contains(error_of_bytes(file_bytes("{\"a\":", "")), "not valid JSON"));
  CHECK(contains(error_of_bytes(file_bytes("{},", "")), "not valid JSON"));
  CHECK(contains(error_of_bytes(file_bytes("{\"\xff\":1}", "")), "not valid JSON"));
  CHECK(contains(error_of_bytes(file_bytes("{\"a\":" + std::string(5000, '['), "")), "nested deeper"));
  CHECK(contains(error_of([&] { SafetensorsFile file(folder / "absent.safetensors"); }), "cannot be opened"));
  CHECK(contains(error_of([&] { SafetensorsFile file(folder.path()); }), "no regular file"));

  // Every prefix of a good file is refused.
  const Tensor tensor = floats({1, 2, 3}, {3});
  const std::pair<std::string, Tensor> tensors[] = {{"a", tensor}};
  write_safetensors(folder / "good.safetensors", tensors);
  const std::string good = test::read_file(folder / "good.safetensors");
  for (std::size_t size = 0; size < good.size(); ++size)
    CHECK(error_of_bytes(std::string_view(good).substr(0, size)) != "(no error)");
  CHECK(error_of_bytes(good) == "(no error)");
}

TEST_CASE("every dtype by its name; FP8 opens and says what is wrong when it is read") {
  TemporaryFolder folder;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                          at::kChar, at::kByte, at::kBool})
    tensors.emplace_back(std::string(safetensors_dtype_name(type)), floats({0, 1, 1}, {3}).to(type));
  write_safetensors(folder / "all.safetensors", tensors);
  SafetensorsFile file(folder / "all.safetensors");
  for (const auto& [name, tensor] : tensors) {
    CHECK(file.entry(name).dtype == name);
    CHECK((file.dtype(name) == tensor.scalar_type()));
    CHECK(file.tensor(name).equal(tensor));
  }
  const auto path =
      write_file(folder / "fp8.safetensors",
                 file_bytes(R"({"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", "ab"));
  SafetensorsFile fp8(path);
  const auto message = error_of([&] { fp8.tensor("w"); });
  CHECK(contains(message, "F8_E4M3"));
  CHECK(contains(message, "\"w\""));
  CHECK(contains(message, "fp8.safetensors"));
}

TEST_CASE("data that are not aligned are read all the same") {
  TemporaryFolder folder;
  const double number = 2.5;
  std::string data = "\x07";
  data.append(reinterpret_cast<const char*>(&number), 8);
  const auto path = write_file(folder / "x.safetensors",
                               file_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                          R"("b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
                                          data));
  SafetensorsFile file(path);
  CHECK(file.tensor("b").const_data_ptr<double>()[0] == 2.5);
}

TEST_CASE("I7: views are written as they look, and no more") {
  TemporaryFolder folder;
  const Tensor matrix = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor tall = zeros({1000, 4}, at::kFloat);
  tall.narrow(0, 2, 2).fill_(7);
  const std::pair<std::string, Tensor> tensors[] = {{"transposed", matrix.t()},
                                                    {"rows", tall.narrow(0, 2, 2)},
                                                    {"expanded", floats({7}, {1}).expand({3})},
                                                    {"same", matrix},
                                                    {"again", matrix}};
  const auto path = folder / "views.safetensors";
  write_safetensors(path, tensors);
  SafetensorsFile file(path);
  CHECK(file.shape("transposed") == std::vector<std::int64_t>{3, 2});
  CHECK(values_of(file.tensor("transposed")) == std::vector<float>{1, 4, 2, 5, 3, 6});
  CHECK(file.entry("rows").end - file.entry("rows").begin == 2 * 4 * 4);
  CHECK(values_of(file.tensor("rows")) == std::vector<float>(8, 7.0f));
  CHECK(values_of(file.tensor("expanded")) == std::vector<float>{7, 7, 7});
  CHECK(file.entry("expanded").end - file.entry("expanded").begin == 12);
  CHECK(file.tensor("again").equal(file.tensor("same")));
}

TEST_CASE("values larger than the writer's window arrive whole") {
  TemporaryFolder folder;
  Tensor wide = empty({5, 3, 1 << 20}, at::kFloat);  // 60 MB: rows of 12 MB, two at a time
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      wide.narrow(0, i, 1).narrow(1, j, 1).fill_(static_cast<double>(10 * i + j));
  const Tensor view = wide.transpose(0, 1);
  const TensorSpec spec[] = {{"w", at::kBFloat16, {3, 5, 1 << 20}}};
  SafetensorsWriter writer(folder / "w.safetensors", spec);
  writer.write("w", view);
  writer.finish();
  SafetensorsFile file(folder / "w.safetensors");
  CHECK(file.tensor("w").to(at::kFloat).equal(view));
  file.release("w");
  CHECK(file.tensor("w").to(at::kFloat).equal(view));
}

TEST_CASE("a writer that does not finish leaves what was there") {
  TemporaryFolder folder;
  const auto path = write_file(folder / "x.safetensors", "old");
  const TensorSpec specs[] = {{"a", at::kFloat, {2}}, {"b", at::kFloat, {2}}};
  const Tensor two = floats({1, 2}, {2});
  {
    SafetensorsWriter writer(path, specs);
    writer.write("a", two);
    CHECK(contains(error_of([&] { writer.write("a", two); }), "written twice"));
    CHECK(contains(error_of([&] { writer.write("c", two); }), "not declared"));
    CHECK(contains(error_of([&] { writer.write("b", floats({1}, {1})); }), "declared as [2]"));
    CHECK(contains(error_of([&] { writer.finish(); }), "\"b\" was declared but never written"));
  }
  CHECK(test::read_file(path) == "old");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  CHECK(contains(error_of([&] { SafetensorsWriter(folder / "none" / "x.safetensors", specs); }),
                 "cannot be created"));
  const TensorSpec doubled[] = {specs[0], specs[0]};
  CHECK(contains(error_of([&] { SafetensorsWriter(path, doubled); }), "declared twice"));
}

TEST_CASE("XXH64 has its published values") {
  const auto hash = [](std::string_view text, std::uint64_t seed = 0) {
    Xxh64 state(seed);
    state.update(text.data(), text.size());
    return state.digest();
  };
  CHECK(hash("") == 0xEF46DB3751D8E999u);
  CHECK(hash("abc") == 0x44BC2CF5AD770999u);
  CHECK(hash("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1u);
  // However it is fed, the value is the same.
  const std::string text = "Nobody inspects the spammish repetition";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Xxh64 state;
    state.update(text.data(), cut);
    state.update(text.data() + cut, text.size() - cut);
    CHECK(state.digest() == 0xFBCEA83C8A378BF1u);
  }
}

}  // namespace
}  // namespace mgfl::checkpoint

#include "policies/weight_sync/wire.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::weight_sync::detail {

namespace {

// Changes with every change of the messages.
constexpr std::int64_t kVersion = 0x6d67666c'00000001;
constexpr int kLongestShape = 64;

[[noreturn]] void damaged(std::string_view what) {
  throw RunError(concat("weight sync: a message is damaged (", what,
                        "); start the sender and the receivers from one build."));
}

void broadcast_text(Wire& wire, std::string& text, int from) {
  if (text.empty()) return;
  Tensor bytes = bytes_at(text.data(), static_cast<std::int64_t>(text.size()));
  wire.broadcast(bytes, from);
}

}  // namespace

void Writer::number(std::int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void Writer::text(std::string_view value) {
  number(static_cast<std::int64_t>(value.size()));
  bytes_.append(value);
}

void Writer::spec(const checkpoint::TensorSpec& value) {
  text(value.name);
  number(static_cast<std::int64_t>(value.dtype));
  number(static_cast<std::int64_t>(value.shape.size()));
  for (const std::int64_t size : value.shape) number(size);
}

std::string_view Reader::take(std::int64_t bytes) {
  if (bytes < 0 || static_cast<std::uint64_t>(bytes) > rest_.size()) damaged("it ends too early");
  const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(bytes));
  rest_.remove_prefix(taken.size());
  return taken;
}

std::int64_t Reader::number() {
  std::int64_t value = 0;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

std::string Reader::text() { return std::string(take(number())); }

checkpoint::TensorSpec Reader::spec() {
  checkpoint::TensorSpec value;
  value.name = text();
  const std::int64_t dtype = number();
  if (dtype < 0 || dtype >= static_cast<std::int64_t>(at::ScalarType::NumOptions))
    damaged("its dtype is unknown");
  value.dtype = static_cast<at::ScalarType>(dtype);
  checkpoint::safetensors_dtype_name(value.dtype);
  const std::int64_t dimensions = number();
  if (dimensions < 0 || dimensions > kLongestShape) damaged("its shape is too long");
  for (std::int64_t i = 0; i < dimensions; ++i) value.shape.push_back(number());
  return value;
}

Tensor bytes_at(const void* memory, std::int64_t bytes) {
  return from_blob(const_cast<void*>(memory), {bytes}, at::kByte);
}

void send_message(Wire& wire, Kind kind, std::string_view text, Tensor payload) {
  const std::int64_t payload_bytes = payload.defined() ? static_cast<std::int64_t>(payload.nbytes()) : 0;
  const std::array<std::int64_t, 4> head{kVersion, static_cast<std::int64_t>(kind),
                                         static_cast<std::int64_t>(text.size()), payload_bytes};
  Tensor bytes = bytes_at(head.data(), sizeof head);
  wire.broadcast(bytes, wire.root());
  std::string copy(text);
  broadcast_text(wire, copy, wire.root());
  if (payload_bytes > 0) wire.broadcast(payload, wire.root());
}

Message receive_message(Wire& wire) {
  std::array<std::int64_t, 4> head{};
  Tensor bytes = bytes_at(head.data(), sizeof head);
  wire.broadcast(bytes, wire.root());
  const auto [version, kind, text_bytes, payload_bytes] = head;
  if (version != kVersion || kind < static_cast<std::int64_t>(Kind::plan) ||
      kind > static_cast<std::int64_t>(Kind::abort) || text_bytes < 0 || payload_bytes < 0)
    damaged("its head is unknown");
  Message message{static_cast<Kind>(kind), std::string(static_cast<std::size_t>(text_bytes), '\0'),
                  payload_bytes};
  broadcast_text(wire, message.text, wire.root());
  return message;
}

std::string words_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type was thrown.";
  }
}

void agree_on_success(Wire& wire, const std::exception_ptr& failure) {
  // The lowest rank that failed has the largest number.
  std::int64_t number = failure ? wire.size() - wire.rank() : 0;
  Tensor largest = from_blob(&number, {1}, at::kLong);
  wire.max(largest);
  if (number == 0) return;
  const int culprit = wire.size() - static_cast<int>(number);
  std::string words = failure ? words_of(failure) : std::string();
  std::int64_t length = static_cast<std::int64_t>(words.size());
  Tensor length_bytes = bytes_at(&length, sizeof length);
  wire.broadcast(length_bytes, culprit);
  if (wire.rank() != culprit) words.assign(static_cast<std::size_t>(length), '\0');
  broadcast_text(wire, words, culprit);
  if (failure) std::rethrow_exception(failure);
  throw RunError(concat("weight sync: rank ", culprit, " could not take the weights: ", words));
}

}  // namespace mgfl::weight_sync::detail

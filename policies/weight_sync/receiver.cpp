#include "policies/weight_sync/receiver.hpp"

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "mgfl/base/error.hpp"
#include "mgfl/base/xxh64.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::weight_sync::detail {

namespace {

// Host memory for the next tensors. To touch its pages for the first time costs about as much as the
// transport; huge ones, where the system has them, much less.
Tensor fresh_memory(std::int64_t bytes) {
  Tensor memory = empty({bytes}, at::kByte);
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t huge = 2 << 20;
  const auto start = reinterpret_cast<std::uintptr_t>(memory.const_data_ptr());
  const std::uintptr_t first = (start + huge - 1) / huge * huge;
  const std::uintptr_t last = (start + static_cast<std::uintptr_t>(bytes)) / huge * huge;
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
  return memory;
}

// What is done with the weights that come.
struct Taker {
  function_ref<void(FolderPlan)> plan;
  TensorSink tensor;
  function_ref<void()> finish;  // every rank has all tensors, and they are those that were sent
};

std::vector<Piece> read_pieces(const Message& message) {
  Reader reader(message.text);
  std::vector<Piece> pieces;
  std::int64_t rest = message.payload_bytes;
  bool fits = true;
  while (fits && !reader.at_end()) {
    Piece& piece = pieces.emplace_back();
    piece.tensor = reader.spec();
    piece.begin = reader.number();
    piece.bytes = reader.number();
    fits = piece.bytes >= 0 && piece.bytes <= rest;
    if (fits) rest -= piece.bytes;
  }
  check_run(fits && rest == 0, "weight sync: a bucket of ", message.payload_bytes,
            " bytes does not have the size of the tensors that it is said to hold.");
  return pieces;
}

FolderPlan read_plan(const Message& message) {
  Reader reader(message.text);
  FolderPlan plan;
  plan.config_json = reader.text();
  while (!reader.at_end()) plan.specs.push_back(reader.spec());
  return plan;
}

// Puts pieces together to tensors.
class Assembly {
 public:
  explicit Assembly(TensorSink sink) : sink_(sink) {}

  // Where the next piece's bytes belong; makes the tensor at its first piece.
  std::byte* place_of(const Piece& piece) {
    if (!tensor_.defined()) {
      bytes_ = static_cast<std::int64_t>(checkpoint::tensor_bytes(piece.tensor));
      spec_ = piece.tensor;
      // The last tensor's memory serves again unless the sink kept it.
      if (!memory_.defined() || memory_.numel() < bytes_ || memory_.storage().use_count() > 1)
        memory_ = fresh_memory(bytes_);
      tensor_ = memory_.narrow(0, 0, bytes_).view(spec_.dtype).view(spec_.shape);
      Writer described;
      described.spec(spec_);
      hash_.update(described.bytes().data(), described.bytes().size());
    }
    check_run(
        piece.tensor.name == spec_.name && piece.begin == received_ && piece.bytes <= bytes_ - received_,
        "weight sync: ", piece.bytes, " bytes of tensor \"", piece.tensor.name, "\" from byte ", piece.begin,
        " on came where byte ", received_, " of the ", bytes_, " of tensor \"", spec_.name, "\" was due.");
    return static_cast<std::byte*>(tensor_.mutable_data_ptr()) + received_;
  }

  // The bytes of the piece are in their place.
  void take(const Piece& piece) {
    hash_.update(static_cast<const std::byte*>(tensor_.const_data_ptr()) + received_,
                 static_cast<std::size_t>(piece.bytes));
    received_ += piece.bytes;
    if (received_ < bytes_) return;
    ++report_.tensors;
    report_.bytes += bytes_;
    received_ = 0;
    sink_(spec_.name, std::exchange(tensor_, Tensor()));
  }

  SyncReport check_end(const Message& message) {
    Reader reader(message.text);
    const std::int64_t tensors = reader.number(), bytes = reader.number();
    const auto hash = static_cast<std::uint64_t>(reader.number());
    report_.hash = hash_.digest();
    check_run(report_.tensors == tensors && report_.bytes == bytes, "weight sync: ", report_.tensors,
              " tensors of ", report_.bytes, " bytes came, but ", tensors, " of ", bytes, " were sent.");
    check_run(report_.hash == hash, "weight sync: the weights that came have hash ", std::hex, report_.hash,
              ", those that were sent ", hash, "; their transport is not to be trusted.");
    return report_;
  }

 private:
  TensorSink sink_;
  Tensor memory_;  // bytes, of which tensor_ is a view
  Tensor tensor_;  // under way; undefined between tensors
  checkpoint::TensorSpec spec_;
  std::int64_t bytes_ = 0, received_ = 0;  // of it
  Xxh64 hash_;
  SyncReport report_;
};

SyncReport receive(Wire& wire, const Taker& taker) {
  check_user(wire.root() != wire.rank(), "weight sync: rank ", wire.rank(),
             " is to receive from itself; its root is the rank that sends.");
  Assembly assembly(taker.tensor);
  Tensor bucket;
  SyncReport report;
  // A rank that has failed stays at the others' side, so that all end together and the group stays usable.
  std::exception_ptr failure;
  const auto attempt = [&](auto&& work) {
    if (failure) return;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  for (;;) {
    const Message message = receive_message(wire);
    if (message.kind == Kind::plan) {
      attempt([&] { taker.plan(read_plan(message)); });
    } else if (message.kind == Kind::bucket) {
      std::vector<Piece> pieces;
      Tensor payload;
      attempt([&] {
        pieces = read_pieces(message);
        if (pieces.size() == 1) payload = bytes_at(assembly.place_of(pieces[0]), pieces[0].bytes);
      });
      const bool in_place = payload.defined();
      if (!in_place) {
        if (!bucket.defined() || bucket.numel() < message.payload_bytes)
          bucket = empty({message.payload_bytes}, at::kByte);
        payload = bytes_at(bucket.const_data_ptr(), message.payload_bytes);
      }
      if (message.payload_bytes > 0) wire.broadcast(payload, wire.root());
      attempt([&] {
        const auto* from = static_cast<const std::byte*>(payload.const_data_ptr());
        for (const Piece& piece : pieces) {
          if (!in_place) {
            std::byte* to = assembly.place_of(piece);
            if (piece.bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(piece.bytes));
          }
          from += piece.bytes;
          assembly.take(piece);
        }
      });
    } else if (message.kind == Kind::end) {
      attempt([&] { report = assembly.check_end(message); });
      agree_on_success(wire, failure);  // no rank puts new weights in place unless every rank has them
      attempt(taker.finish);
      agree_on_success(wire, failure);
      return report;
    } else {
      if (failure) std::rethrow_exception(failure);
      throw RunError(concat("weight sync: the sender, rank ", wire.root(), ", gave up: ", message.text));
    }
  }
}

}  // namespace

SyncReport receive_weights(Wire& wire, TensorSink sink) {
  return receive(wire, {[](FolderPlan) {}, sink, [] {}});
}

SyncReport receive_hf_folder(Wire& wire, const std::filesystem::path& folder, std::uint64_t shard_limit) {
  std::unique_ptr<bridge::HfWeightsWriter> writer;
  const auto writer_of_plan = [&]() -> bridge::HfWeightsWriter& {
    check_user(writer != nullptr, folder.string(),
               ": the sender sent weights without the folder's plan; send them by send_hf_folder.");
    return *writer;
  };
  const auto plan = [&](FolderPlan coming) {
    writer = std::make_unique<bridge::HfWeightsWriter>(folder, coming.specs, shard_limit);
    writer->write_text("config.json", coming.config_json);
  };
  const auto tensor = [&](const std::string& name, const Tensor& values) {
    writer_of_plan().write(name, values);
  };
  const auto finish = [&] { writer_of_plan().finish(); };
  return receive(wire, {plan, tensor, finish});
}

}  // namespace mgfl::weight_sync::detail

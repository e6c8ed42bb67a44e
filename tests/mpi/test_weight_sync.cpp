// Weights that rank 0 sends arrive bit for bit on every other rank, or every rank says why not.
#include "mgfl/tensor/lean.hpp"

#include "tests/support/doctest.hpp"

#include "tests/support/mpi.hpp"

#include <cstring>
#include <ranges>
#include <stdexcept>

#include "mgfl/tensor/factory.hpp"
#include "policies/bridge/auto_bridge.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/parallel/self.hpp"
#include "policies/weight_sync/receiver.hpp"
#include "policies/weight_sync/sender.hpp"
#include "tests/mpi/weight_sync.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using mgfl_test::NamedTensors;
using mgfl_test::weights_of;
using parallel::Mpi;
using test::contains;
using test::error_of;
using test::read_file;
using test::TemporaryFolder;
using weight_sync::FolderPlan;
using weight_sync::receive_hf_folder;
using weight_sync::receive_weights;
using weight_sync::send_hf_folder;
using weight_sync::send_weights;
using weight_sync::SyncReport;

namespace {

const std::string kModel = std::string(MGFL_TEST_DATA) + "/qwen3";

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor one = a.contiguous(), other = b.contiguous();
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
         (one.nbytes() == 0 || std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0);
}

std::int64_t bytes_of(const NamedTensors& weights) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : weights) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

FolderPlan plan_of(const NamedTensors& weights, std::string config_json = "{}\n") {
  FolderPlan plan{{}, std::move(config_json)};
  for (const auto& [name, tensor] : weights)
    plan.specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  return plan;
}

void check_folder(const std::filesystem::path& folder, const NamedTensors& expected) {
  const bridge::HfWeights rebuilt(folder);
  REQUIRE(rebuilt.names().size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    REQUIRE(rebuilt.has(name));
    CHECK(same_bits(rebuilt.tensor(name), tensor));
  }
}

std::string rank_words(int rank, const std::string& words) {
  return concat("weight sync: rank ", rank, " could not take the weights: ", words);
}

std::string sender_words(const std::string& words) {
  return concat("weight sync: the sender, rank 0, gave up: ", words);
}

/// A sync in which `range` is sent; what goes wrong on this rank, or "(no error)".
template <class R>
std::string outcome(Mpi& world, R&& range, weight_sync::SenderConfig config = {}) {
  return error_of([&] {
    if (world.rank() == 0)
      send_weights(range, world, config);
    else
      receive_weights(world, 0, [](const std::string&, const Tensor&) {});
  });
}

}  // namespace

TEST_CASE("receivers rebuild the model folder bit for bit, in every dtype and with buckets of any size") {
  Mpi world(mgfl_test::session());
  const auto bridge = bridge::AutoBridge::from_hf_pretrained(kModel);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    for (const std::int64_t bucket_bytes :
         {std::int64_t{1} << 10, std::int64_t{9999}, std::int64_t{1} << 28}) {
      CAPTURE(c10::toString(dtype));
      CAPTURE(bucket_bytes);
      const NamedTensors weights = weights_of(kModel, dtype);
      const std::string config_json = bridge.config_json(dtype);
      const TemporaryFolder work;
      const SyncReport report =
          world.rank() == 0 ? send_hf_folder(weights, plan_of(weights, config_json), world, {bucket_bytes})
                            : receive_hf_folder(world, 0, work / "model", std::uint64_t{40000});
      CHECK(report.tensors == static_cast<std::int64_t>(weights.size()));
      CHECK(report.bytes == bytes_of(weights));
      if (world.rank() == 0) continue;
      check_folder(work / "model", weights);
      CHECK(read_file(work / "model" / "config.json") == config_json);
      CHECK(bridge::read_hf_config(work / "model").dtype == dtype);
      CHECK(std::distance(std::filesystem::directory_iterator(work.path()), {}) == 1);
    }
  }
}

TEST_CASE("a lazy range of tensors of all shapes, strides and dtypes arrives in order; any rank can send") {
  Mpi world(mgfl_test::session());
  const int root = world.size() - 1;
  const auto counted = [](std::initializer_list<std::int64_t> shape) {
    Tensor values = empty(shape, at::kFloat);
    for (std::int64_t i = 0; i < values.numel(); ++i)
      values.mutable_data_ptr<float>()[i] = static_cast<float>(i) / 3;
    return values;
  };
  const Tensor matrix = counted({6, 4});
  const NamedTensors weights{
      {"none", zeros({0}, at::kFloat)},
      {"strided", matrix.t()},
      {"no rows", zeros({0, 5}, at::kBFloat16)},
      {"scalar", zeros({}, at::kDouble).fill_(0.1)},
      {"every second", matrix.slice(1, 0, 4, 2)},
      {"int64", matrix.to(at::kLong)},
      {"int16", matrix.to(at::kShort)},
      {"bool", matrix.gt(3)},
      {"", matrix.mul(2)},
      {"no columns", zeros({2, 0, 2}, at::kHalf)},
      {"large", counted({3, 1 << 18}).t()},  // 3 MiB
      {"last", zeros({0}, at::kHalf)},
  };
  for (const std::int64_t bucket_bytes : {7, 100, 2 << 20}) {
    CAPTURE(bucket_bytes);
    const auto count = bucket_bytes > 100 ? weights.size() : 10;
    if (world.rank() == root) {
      std::size_t made = 0;
      const auto range = std::views::iota(std::size_t{0}, count) | std::views::transform([&](std::size_t i) {
                           ++made;
                           return std::pair(std::string_view(weights[i].first), weights[i].second);
                         });
      send_weights(range, world, {bucket_bytes});
      CHECK(made == count);
      continue;
    }
    NamedTensors taken;
    receive_weights(world, root,
                    [&](const std::string& name, const Tensor& tensor) { taken.emplace_back(name, tensor); });
    REQUIRE(taken.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
      CAPTURE(weights[i].first);
      CHECK(taken[i].first == weights[i].first);
      CHECK(taken[i].second.is_contiguous());
      CHECK(same_bits(taken[i].second, weights[i].second));
    }
  }
}

TEST_CASE("a second sync after a step replaces the folder and keeps other files; one rank alone can send") {
  Mpi world(mgfl_test::session());
  const TemporaryFolder work;
  NamedTensors weights = weights_of(kModel);
  SyncReport first;
  for (int step = 0; step < 3; ++step) {
    CAPTURE(step);
    const SyncReport report = world.rank() == 0
                                  ? send_hf_folder(weights, plan_of(weights, concat(step)), world, {5000})
                                  : receive_hf_folder(world, 0, work / "model");
    parallel::Self self;
    CHECK(send_weights(weights, self).hash == report.hash);
    CHECK((step == 0 || report.hash != first.hash));
    first = report;
    if (world.rank() != 0) {
      check_folder(work / "model", weights);
      CHECK(read_file(work / "model" / "config.json") == concat(step));
      if (step == 0) test::write_file(work / "model" / "tokenizer.json", "words");
      CHECK(read_file(work / "model" / "tokenizer.json") == "words");
    }
    for (auto& [name, tensor] : weights) tensor.add_(0.5);
  }
}

TEST_CASE("what the range throws reaches every receiver, and no folder is touched") {
  Mpi world(mgfl_test::session());
  const NamedTensors weights = weights_of(kModel);
  auto failing = weights | std::views::transform([&](const auto& pair) {
                   if (&pair == &weights[7]) throw std::runtime_error("the optimizer is half way");
                   return pair;
                 });
  for (const bool exists : {false, true}) {
    CAPTURE(exists);
    const TemporaryFolder work;
    if (exists) {
      if (world.rank() == 0)
        send_hf_folder(weights, plan_of(weights), world);
      else
        receive_hf_folder(world, 0, work / "model");
    }
    if (world.rank() == 0) {
      CHECK_THROWS_WITH_AS(send_hf_folder(failing, plan_of(weights, "new"), world, {1024}),
                           "the optimizer is half way", std::runtime_error);
      continue;
    }
    CHECK_THROWS_WITH_AS(receive_hf_folder(world, 0, work / "model"),
                         sender_words("the optimizer is half way").c_str(), RunError);
    CHECK(std::distance(std::filesystem::directory_iterator(work.path()), {}) == (exists ? 1 : 0));
    if (exists) {
      check_folder(work / "model", weights);
      CHECK(read_file(work / "model" / "config.json") == "{}\n");
    }
  }
  CHECK(outcome(world, weights) == "(no error)");
}

TEST_CASE("a sink that throws on one rank is an error on every rank, and the group goes on") {
  Mpi world(mgfl_test::session());
  const int last = world.size() - 1;
  const NamedTensors weights = weights_of(kModel, at::kFloat);
  const std::string words =
      concat("the engine holds ", weights[3].first, " in bf16, but fp32 came; load it again.");
  int calls = 0;
  const auto message = error_of([&] {
    if (world.rank() == 0)
      send_weights(weights, world, {3000});
    else
      receive_weights(world, 0, [&](const std::string& name, const Tensor& tensor) {
        ++calls;
        check_user(world.rank() != last || name != weights[3].first || tensor.scalar_type() == at::kBFloat16,
                   words);
      });
  });
  CHECK(message == (world.rank() == last ? words : rank_words(last, words)));
  if (world.rank() != 0) CHECK(calls == (world.rank() == last ? 4 : static_cast<int>(weights.size())));
  CHECK(outcome(world, weights) == "(no error)");
}

TEST_CASE("no rank gets a new folder unless all can have it") {
  Mpi world(mgfl_test::session());
  const int last = world.size() - 1;
  const NamedTensors weights = weights_of(kModel);
  const TemporaryFolder work;
  if (world.rank() == last) test::write_file(work / "model", "no folder");
  const auto message = error_of([&] {
    if (world.rank() == 0)
      send_hf_folder(weights, plan_of(weights), world);
    else
      receive_hf_folder(world, 0, work / "model");
  });
  CHECK(contains(message, "exists and is no folder"));
  if (world.rank() != last) CHECK(message.starts_with(rank_words(last, "")));
  if (world.rank() != last) CHECK(std::filesystem::is_empty(work.path()));
}

TEST_CASE("weights that do not fit the plan, and tensors that cannot be sent, are errors on every rank") {
  Mpi world(mgfl_test::session());
  const NamedTensors weights{{"a", zeros({2, 3}, at::kFloat)}, {"b", zeros({4}, at::kHalf)}};
  const TemporaryFolder work;
  const auto planned = [&](const NamedTensors& sent, const FolderPlan& plan, const std::string& words) {
    const auto message = error_of([&] {
      if (world.rank() == 0)
        send_hf_folder(sent, plan, world);
      else
        receive_hf_folder(world, 0, work / "model");
    });
    CHECK(message == (world.rank() == 0 ? words : sender_words(words)));
    CHECK(std::filesystem::is_empty(work.path()));
  };
  const FolderPlan plan = plan_of(weights);
  planned({weights[1]}, plan, "weight sync: the weights lack a, which the plan names.");
  planned({weights[0], {"c", weights[1].second}}, plan,
          "weight sync: the plan has no tensor \"c\", which the weights give.");
  planned({{"a", zeros({2, 3}, at::kBFloat16)}}, plan,
          "weight sync: tensor \"a\" is BF16 [2, 3], but the plan says F32 [2, 3].");
  planned({{"a", zeros({3, 2}, at::kFloat)}}, plan,
          "weight sync: tensor \"a\" is F32 [3, 2], but the plan says F32 [2, 3].");
  planned({weights[0], weights[0]}, plan, "weight sync: tensor \"a\" comes twice; send each name once.");
  planned(weights, plan_of({weights[0], weights[0]}),
          "weight sync: the plan names tensor \"a\" twice; name each once.");

  const auto refused = [&](const NamedTensors& sent, weight_sync::SenderConfig config,
                           const std::string& words) {
    const std::string message = outcome(world, sent, config);
    CHECK(contains(message, words));
    CHECK(message.starts_with(sender_words("")) == (world.rank() != 0));
  };
  refused(weights, {0}, "weight sync: bucket_bytes is 0; give at least 1.");
  refused({{"a", Tensor()}}, {}, "weight sync: tensor \"a\" is undefined or sparse; give a dense one.");
  refused({{"a", zeros({2}, at::kComplexFloat)}}, {}, "ComplexFloat");
}

TEST_CASE("a folder cannot be rebuilt without its plan") {
  Mpi world(mgfl_test::session());
  const NamedTensors weights = weights_of(kModel);
  const TemporaryFolder work;
  const auto folder = work / "model";
  const auto message = error_of([&] {
    if (world.rank() == 0)
      send_weights(weights, world);
    else
      receive_hf_folder(world, 0, folder);
  });
  const auto words = [](const std::filesystem::path& path) {
    return concat(path.string(),
                  ": the sender sent weights without the folder's plan; send them by send_hf_folder.");
  };
  if (world.rank() == 0)
    CHECK((message.starts_with(rank_words(1, "")) && message.ends_with(words("/model"))));
  else
    CHECK(message == words(folder));
  CHECK(std::filesystem::is_empty(work.path()));
}

TEST_CASE("a rank cannot receive from itself") {
  parallel::Self self;
  CHECK_THROWS_WITH_AS(receive_weights(self, 0, [](const std::string&, const Tensor&) {}),
                       "weight sync: rank 0 is to receive from itself; its root is the rank that sends.",
                       UserError);
}

namespace {

/// The world, but the last rank gets one bit of the first broadcast of `length` bytes wrong.
struct FaultyTransport {
  Mpi& world;
  std::int64_t length;
  int place;

  int rank() const { return world.rank(); }
  int size() const { return world.size(); }
  void all_reduce(Tensor& tensor, ReduceOp op) { world.all_reduce(tensor, op); }
  void all_gather(const Tensor& part, Tensor& gathered) { world.all_gather(part, gathered); }
  void barrier() { world.barrier(); }
  void broadcast(Tensor& tensor, int root) {
    world.broadcast(tensor, root);
    if (rank() != size() - 1 || static_cast<std::int64_t>(tensor.nbytes()) != length) return;
    length = -1;
    static_cast<std::uint8_t*>(tensor.mutable_data_ptr())[place] ^= 1;
  }
};
static_assert(parallel::Communicator<FaultyTransport>);

}  // namespace

TEST_CASE("a wrong bit in the weights, or in what is said of them, is seen") {
  Mpi world(mgfl_test::session());
  const int last = world.size() - 1;
  const NamedTensors weights = weights_of(kModel);
  const TemporaryFolder work;
  parallel::Self self;
  const SyncReport good = send_weights(weights, self);
  struct Fault {
    std::int64_t length;  // of the broadcast
    int place;
    std::string words;
  };
  const std::string sent =
      concat("those that were sent ", std::hex, good.hash, "; their transport is not to be trusted.");
  const Fault faults[] = {
      {1024, 17, sent},  // values
      {24, 0,
       concat(good.tensors, " tensors of ", good.bytes, " bytes came, but ", good.tensors ^ 1, " of ",
              good.bytes, " were sent.")},                                                 // the count
      {24, 8, concat("came, but ", good.tensors, " of ", good.bytes ^ 1, " were sent.")},  // the bytes
      {24, 16,
       concat("have hash ", std::hex, good.hash, ", those that were sent ", good.hash ^ 1)},  // the hash
  };
  for (const Fault& fault : faults) {
    CAPTURE(fault.words);
    FaultyTransport faulty{world, fault.length, fault.place};
    const auto message = error_of([&] {
      if (world.rank() == 0)
        send_hf_folder(weights, plan_of(weights), faulty, {1024});
      else
        receive_hf_folder(faulty, 0, work / "model");
    });
    CHECK(contains(message, fault.words));
    CHECK(message.starts_with(rank_words(last, "")) == (world.rank() != last));
    CHECK(std::filesystem::is_empty(work.path()));
  }
}

TEST_CASE("a wrong bit in the description of a bucket is seen") {
  Mpi world(mgfl_test::session());
  const int last = world.size() - 1;
  // Described by 49 bytes: the length of its name, its name, dtype, dimensions, size, first byte, bytes.
  const NamedTensors weights{{"a", zeros({4}, at::kFloat)}};
  struct Fault {
    int place;
    std::string words;
  };
  const std::string damaged = "start the sender and the receivers from one build.";
  const Fault faults[] = {
      {1, "weight sync: a message is damaged (it ends too early); " + damaged},
      {0, "weight sync: a message is damaged (its dtype is unknown); " + damaged},
      {18, "weight sync: a message is damaged (its shape is too long); " + damaged},
      {41,
       "weight sync: a bucket of 16 bytes does not have the size of the tensors that it is said to hold."},
      {33,
       "weight sync: 16 bytes of tensor \"a\" from byte 1 on came where byte 0 of the 16 of tensor \"a\" was "
       "due."},
      {8, "weight sync: the weights that came have hash "},                    // named `
      {25, "weight sync: 0 tensors of 0 bytes came, but 1 of 16 were sent."},  // of 5 elements
  };
  for (const Fault& fault : faults) {
    CAPTURE(fault.place);
    FaultyTransport faulty{world, 49, fault.place};
    const auto message = error_of([&] {
      if (world.rank() == 0)
        send_weights(weights, faulty);
      else
        receive_weights(faulty, 0, [](const std::string&, const Tensor&) {});
    });
    CHECK(message.starts_with(world.rank() == last ? fault.words : rank_words(last, fault.words)));
  }
}

TEST_CASE("where the group itself fails, its error is what every rank gets, and no message follows") {
  Mpi world(mgfl_test::session());
  const NamedTensors weights = weights_of(kModel);
  const auto message = error_of([&] {
    if (world.rank() == 0)
      send_weights(weights, world);
    else
      world.barrier();
  });
  CHECK(contains(message, "disagree in operation"));
  CHECK(contains(message, "rank 1 calls barrier"));
  CHECK(outcome(world, weights) == "(no error)");
}

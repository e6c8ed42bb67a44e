// The distributed optimizer: shards of any size against recorded numbers, the unsharded optimizer and hand
// calculation; skipped steps, checkpoints between layouts, memory.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "mgfl/parallel/share.hpp"
#include "policies/rl/losses.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/mpi/shared_folder.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"
#include "tests/support/params.hpp"

using namespace mgfl;
using mgfl_test::files_of;
using mgfl_test::Mpi;
using mgfl_test::RankGroups;
using mgfl_test::same_bits;
using mgfl_test::same_bits_everywhere;
using mgfl_test::SharedFolder;
using test::Fixture;
using test::max_difference;
using test::numbers;
using test::Params;

namespace {

/// The context of an engine on a group, and of this rank alone.
struct Groups : RankGroups {
  Mpi alone = world.split(world.rank(), 0, "alone");
  auto context() { return context(world); }
  parallel::Context<Mpi> context(Mpi& group) { return parallel::data_parallel_context(group, alone); }
};

template <class P>
using Sharded = LanguageModelEngine<Mpi, P, optimizer::Distributed>;
template <class P>
using Replicated = LanguageModelEngine<Mpi, P>;

/// An initialized engine.
template <class E, class C>
std::unique_ptr<E> engine_on(parallel::Context<C> context, const std::string& folder,
                             optimizer::OptimizerConfig optimizer = test::adam(), EngineConfig config = {}) {
  auto engine = std::make_unique<E>(ModelConfig{folder, "", 1}, config, optimizer,
                                    test::constant_schedule(optimizer.lr, optimizer.weight_decay), context);
  engine->initialize();
  return engine;
}

/// Sequences of this rank: contiguous shares, possibly none.
Batch share(const Batch& batch, const Mpi& group) {
  const auto [first, last] = parallel::share_of(batch.num_sequences(), group);
  return sequences_of(batch, first, last);
}

/// Whether this rank's part of the sharded engine's state has the bits of the whole one's.
template <class Shards, class Whole>
bool same_state(Shards& shards, Whole& whole) {
  const auto& buffer = shards.param_buffer();
  const auto &moments = shards.optimizer().inner(), &others = whole.optimizer().inner();
  return same_bits(buffer.values, whole.param_buffer().values) &&
         same_bits(buffer.main_params, buffer.owned(whole.param_buffer().main_params)) &&
         same_bits(moments.exp_avg, buffer.owned(others.exp_avg)) &&
         same_bits(moments.exp_avg_sq, buffer.owned(others.exp_avg_sq)) && moments.updates == others.updates;
}

}  // namespace

TEST_CASE("Fp64: loss, gradients, norms and three steps are the recorded ones") {
  Groups groups;
  for (const auto* name : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(name);
    const Fixture fixture(name);
    const checkpoint::SafetensorsFile expected(fixture.folder + "/expected64.safetensors");
    const auto engine = engine_on<Sharded<optimizer::Fp64>>(groups.context(), fixture.folder);
    const auto result = engine->forward_backward_batch(share(fixture.batch(), groups.world), SftLoss{});
    CHECK(std::abs(result.loss() - expected.tensor("mean_loss").item<double>()) < 1e-10);
    auto grads = engine->optimizer().whole_params(engine->optimizer().main_grads());
    for (std::size_t i = 0; i < grads.params().size(); ++i) {
      engine->optimizer().gather(grads, i);
      if (groups.world.rank() > 0) continue;
      const auto& param = grads.params()[i];
      for (const auto& part : bridge::hf_tensors(engine->config(), *param.desc, *param.value)) {
        CAPTURE(part.name);
        CHECK(max_difference(part.view.reshape(part.shape), expected.tensor("grad." + part.name)) < 1e-10);
      }
    }
    for (std::int64_t step = 0; step < 3; ++step) {
      const auto batch = fixture.batch("train.", 4 * step, 4 * step + 4);
      const auto trained = engine->train_batch(share(batch, groups.world), SftLoss{});
      CHECK(std::abs(trained.loss() - expected.tensor("train.loss")[step].item<double>()) < 1e-10);
      CHECK(std::abs(trained.step.grad_norm - expected.tensor("train.grad_norm")[step].item<double>()) <
            1e-10);
    }
    test::for_each_hf_tensor(*engine, false, [&](const std::string& part, const Tensor& value) {
      CAPTURE(part);
      CHECK(max_difference(value, expected.tensor("step3." + part)) < 1e-10);
    });
    CHECK(same_bits_everywhere(numbers(engine->param_buffer().values), groups.world));
  }
}

TEST_CASE("fp32: three steps within the bounds of one rank's") {
  Groups groups;
  const Fixture fixture("qwen3");
  const auto engine = engine_on<Sharded<optimizer::Fp32>>(groups.context(), fixture.folder);
  for (std::int64_t step = 0; step < 3; ++step)
    engine->train_batch(share(fixture.batch("train.", 4 * step, 4 * step + 4), groups.world), SftLoss{});
  const auto distance = test::compare_step3(*engine, fixture.expected);
  CHECK(distance.within >= 0.99);
  CHECK(distance.largest < 1e-3);
  CHECK(distance.worst_median < 5e-7);
}

TEST_CASE_TEMPLATE("shards and whole states: equal bits without clipping, 1e-12 with it", P, optimizer::Fp64,
                   optimizer::Fp32, optimizer::Bf16WithFp32Main, optimizer::Fp16WithLossScaler) {
  Groups groups;
  const Fixture fixture("llama");
  for (const double clip : {0.0, 0.05}) {
    CAPTURE(clip);
    auto config = test::adam();
    config.clip_grad = clip;
    config.log_num_zeros_in_grad = true;
    config.initial_loss_scale = 65536;
    const auto shards = engine_on<Sharded<P>>(groups.context(), fixture.folder, config);
    const auto whole = engine_on<Replicated<P>>(groups.context(), fixture.folder, config);
    CHECK(same_state(*shards, *whole));
    for (std::int64_t step = 0; step < 3; ++step) {
      CAPTURE(step);
      const auto batch = share(fixture.batch("train.", 4 * step, 4 * step + 4), groups.world);
      const auto one = shards->train_batch(batch, SftLoss{}), other = whole->train_batch(batch, SftLoss{});
      CHECK(one.step.stepped);
      // The clip factor's last bit may differ, and with it a step; in fp32 that grows from step to step.
      const double bound = P::main_dtype == at::kDouble || step == 0 ? 1e-12 : 1e-5;
      CHECK(std::abs(one.loss() - other.loss()) <= (clip > 0 ? bound : 0.0));
      CHECK(std::abs(one.step.grad_norm / other.step.grad_norm - 1) < (clip > 0 ? bound : 1e-12));
      if (clip > 0) CHECK(other.step.grad_norm > clip);
      // Only rows of the embedding that no token has: 331 of them at most, 48 wide.
      CHECK(one.step.num_zeros == other.step.num_zeros);
      CHECK(one.step.num_zeros > 48);
      if (clip == 0) {
        CHECK(same_bits(shards->optimizer().main_grads(),
                        shards->param_buffer().owned(whole->param_buffer().main_grads)));
        CHECK(same_state(*shards, *whole));
      } else if (P::main_dtype == at::kDouble) {
        CHECK(max_difference(shards->param_buffer().values, whole->param_buffer().values) < 1e-12);
      }
      CHECK(same_bits_everywhere({one.step.grad_norm, one.loss()}, groups.world));
    }
    CHECK(same_bits_everywhere(numbers(shards->param_buffer().values), groups.world));
  }
}

TEST_CASE("critics have shards too") {
  Groups groups;
  const Fixture fixture("qwen3_value");
  auto config = test::adam();
  config.clip_grad = 0;
  const auto shards = engine_on<ValueModelEngine<Mpi, optimizer::Bf16WithFp32Main, optimizer::Distributed>>(
      groups.context(), fixture.folder, config);
  const auto whole =
      engine_on<ValueModelEngine<Mpi, optimizer::Bf16WithFp32Main>>(groups.context(), fixture.folder, config);
  std::mt19937_64 random(71);
  auto batch = test::random_batch(random, {5, 3, 7, 4, 6}, 331);
  batch.loss_mask = batch.loss_mask.gt(0).to(at::kFloat);
  batch.token_fields.set("returns", test::waves(batch.num_tokens()));
  rl::ValueLoss loss;
  loss.config.cliprange_value.reset();
  for (int step = 0; step < 2; ++step) {
    CHECK(shards->train_batch(share(batch, groups.world), loss).step.stepped);
    whole->train_batch(share(batch, groups.world), loss);
    CHECK(same_state(*shards, *whole));
  }
}

TEST_CASE_TEMPLATE(
    "what one rank alone finds skips the step on all, and the next one is as if it had not been", P,
    optimizer::Bf16WithFp32Main, optimizer::Fp16WithLossScaler) {
  Groups groups;
  const Fixture fixture("qwen3");
  auto config = test::adam();
  config.initial_loss_scale = 65536;  // the hysteresis of 2 keeps it after one overflow
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (int sick = 0; sick < groups.world.size(); ++sick) {
      CAPTURE(sick);
      const auto engine = engine_on<Sharded<P>>(groups.context(), fixture.folder, config);
      const auto clean = engine_on<Sharded<P>>(groups.context(), fixture.folder, config);
      const auto batch = [&](std::int64_t step) {
        return share(fixture.batch("train.", 4 * step, 4 * step + 4), groups.world);
      };
      engine->train_batch(batch(0), SftLoss{});
      clean->train_batch(batch(0), SftLoss{});
      const auto& buffer = engine->param_buffer();
      const auto values = buffer.values.clone(), main = buffer.main_params.clone();
      const auto first = engine->optimizer().inner().exp_avg.clone();
      const auto second = engine->optimizer().inner().exp_avg_sq.clone();

      engine->optimizer_zero_grad();
      engine->forward_backward_batch(batch(1), SftLoss{});
      const auto grads = engine->optimizer().main_grads();  // reduced already: only this rank has them
      if (groups.world.rank() == sick) grads[grads.numel() / 3].fill_(bad);
      const auto outcome = engine->optimizer_step();
      CHECK(outcome.found_inf);
      CHECK_FALSE(outcome.stepped);
      CHECK(std::isnan(outcome.grad_norm));
      CHECK(same_bits(buffer.values, values));
      CHECK(same_bits(buffer.main_params, main));
      CHECK(same_bits(engine->optimizer().inner().exp_avg, first));
      CHECK(same_bits(engine->optimizer().inner().exp_avg_sq, second));
      CHECK(engine->optimizer().inner().updates == 1);

      const auto next = engine->train_batch(batch(2), SftLoss{});
      const auto expected = clean->train_batch(batch(2), SftLoss{});
      CHECK(next.step.stepped);
      CHECK(next.step.grad_norm == expected.step.grad_norm);
      CHECK(same_bits(buffer.values, clean->param_buffer().values));
      CHECK(same_bits(buffer.main_params, clean->param_buffer().main_params));
      CHECK(same_bits(engine->optimizer().inner().exp_avg_sq, clean->optimizer().inner().exp_avg_sq));
    }
}

// ---- without an engine: buffers of any size

namespace {

/// An optimizer of one's own: heavy-ball momentum.
class Momentum {
 public:
  Momentum(const optimizer::ParamBuffer& buffer, const optimizer::OptimizerConfig& config)
      : velocity(zeros({buffer.main_params.numel()}, buffer.main_params.scalar_type())),
        segments_(optimizer::segments_of(buffer, config)) {}
  static std::vector<optimizer::ParamGroup> param_groups(const optimizer::OptimizerConfig& config) {
    return optimizer::param_groups_of(config);
  }
  void step(optimizer::Shard& shard, const std::vector<optimizer::ParamGroup>& groups, double grad_scale) {
    velocity.mul_(0.5).add_(shard.main_grads, grad_scale);
    for (const auto& segment : segments_) {
      const auto& group = groups[segment.group];
      const auto length = segment.end - segment.begin;
      shard.main_params.narrow(0, segment.begin, length)
          .mul_(1 - group.lr * group.weight_decay)
          .sub_(velocity.narrow(0, segment.begin, length), group.lr);
    }
    shard.values.copy_(shard.main_params);
  }
  void to(c10::DeviceType) {}
  Tensor velocity;

 private:
  std::vector<optimizer::Segment> segments_;
};

template <class P, class Kind, class Sharding>
using Stepper = optimizer::MixedPrecisionOptimizer<P, Mpi, Kind, Sharding>;

}  // namespace

TEST_CASE("fewer parameters than ranks: AdamW's first step by hand, empty shards and all") {
  Groups groups;
  auto& world = groups.world;
  const int size = world.size();
  Params own({{3}, {2, 2}}, at::kDouble, at::kDouble, std::pair(world.rank(), size));
  CHECK((own.buffer.begin == own.buffer.end) == (world.rank() >= 2));  // 64 elements each, padding included
  optimizer::OptimizerConfig config;
  config.lr = 0.1;
  config.weight_decay = 0.5;
  config.clip_grad = 0;
  config.log_num_zeros_in_grad = true;
  Stepper<optimizer::Fp64, optimizer::AdamW, optimizer::Sharded> adamw(own.buffer, config, groups.alone,
                                                                       &world);
  // Gradients of rank r are (r + 1) x these; their sum over ranks is `factor` x these.
  const auto vector = test::doubles({3, -4, 0}), matrix = test::doubles({0, 2, 0, 1}).view({2, 2});
  own.grads[0].copy_(vector.mul(world.rank() + 1.0));
  own.grads[1].copy_(matrix.mul(world.rank() + 1.0));
  const double factor = size * (size + 1) / 2;
  const auto before = std::pair(numbers(own.values[0]), numbers(own.values[1]));
  adamw.reduce_grads();
  const auto outcome = adamw.step();
  CHECK(outcome.stepped);
  CHECK(std::abs(outcome.grad_norm - factor * std::sqrt(30.0)) < 1e-12 * factor);
  CHECK(outcome.num_zeros == 3);
  // Both averages are the gradient's own in the first step: a move by lr against its sign.
  const auto expected = [&](double weight, double grad, double decay) {
    return weight * (1 - 0.1 * decay) - 0.1 * grad / (std::abs(grad) + 1e-8);
  };
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(std::abs(numbers(own.values[0])[i] - expected(before.first[i], factor * numbers(vector)[i], 0)) <
          1e-14);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(std::abs(numbers(own.values[1])[i] - expected(before.second[i], factor * numbers(matrix)[i], 0.5)) <
          1e-14);
  CHECK(same_bits_everywhere(numbers(own.buffer.values), world));

  if (world.rank() == std::min(size, 2) - 1)
    adamw.main_grads()[0].fill_(std::numeric_limits<double>::infinity());
  CHECK(adamw.step().found_inf);
  adamw.zero_grad();
  adamw.reduce_grads();
  CHECK(adamw.step().grad_norm == 0.0);
}

TEST_CASE("an optimizer of one's own: the shards of buffers of random layout are cut from the whole one") {
  Groups groups;
  auto& world = groups.world;
  std::mt19937_64 random(72);  // the same on every rank
  for (int trial = 0; trial < 30; ++trial) {
    CAPTURE(trial);
    std::vector<std::vector<std::int64_t>> shapes(static_cast<std::size_t>(1 + test::below(random, 6)));
    for (auto& shape : shapes) {
      shape = {1 + test::below(random, 200)};
      if (test::below(random, 2)) shape.push_back(1 + test::below(random, 9));
    }
    optimizer::OptimizerConfig config;
    config.lr = 0.01;
    config.clip_grad = 0;
    Params own(shapes, at::kBFloat16, at::kFloat, std::pair(world.rank(), world.size()));
    Params all(shapes, at::kBFloat16, at::kFloat, std::nullopt);
    Stepper<optimizer::Bf16WithFp32Main, Momentum, optimizer::Sharded> shards(own.buffer, config,
                                                                              groups.alone, &world);
    Stepper<optimizer::Bf16WithFp32Main, Momentum, optimizer::Replicated> whole(all.buffer, config,
                                                                                groups.alone, &world);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const auto grad =
            test::waves(own.grads[i].numel(), 1.0 + world.rank() + step).view(own.grads[i].sizes());
        own.grads[i].copy_(grad);
        all.grads[i].copy_(grad);
      }
      shards.reduce_grads();
      whole.reduce_grads();
      const double norm = shards.step().grad_norm, expected = whole.step().grad_norm;
      CHECK(std::abs(norm / expected - 1) < 1e-13);
      CHECK(same_bits(own.buffer.values, all.buffer.values));
      CHECK(same_bits(own.buffer.main_params, own.buffer.owned(all.buffer.main_params)));
      CHECK(same_bits(shards.inner().velocity, own.buffer.owned(whole.inner().velocity)));
    }
    // Each parameter, gathered on the first rank, is the whole one's.
    auto velocity = shards.whole_params(shards.inner().velocity);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      shards.gather(velocity, i);
      if (world.rank() == 0)
        CHECK(same_bits(*velocity.params()[i].value, all.buffer.view(whole.inner().velocity, i)));
    }
  }
}

TEST_CASE("state takes a rank's share of the memory; fp32 main weights are the weights") {
  Groups groups;
  auto& world = groups.world;
  const Fixture fixture("llama");
  const auto check = [&](auto& engine) {
    const auto& buffer = engine.param_buffer();
    const auto& moments = engine.optimizer().inner();
    for (const auto* state : {&buffer.main_params, &moments.exp_avg, &moments.exp_avg_sq}) {
      CHECK(std::abs(state->numel() - buffer.numel / world.size()) <= 64);
      CHECK(world.all_reduce_value(state->numel(), ReduceOp::sum) == buffer.numel);
    }
    for (const auto* state : {&moments.exp_avg, &moments.exp_avg_sq})  // no view of something larger
      CHECK(state->storage().nbytes() == state->nbytes());
  };
  const auto fp32 = engine_on<Sharded<optimizer::Fp32>>(groups.context(), fixture.folder);
  check(*fp32);
  const auto is_view = [&] {
    const auto& buffer = fp32->param_buffer();
    return buffer.main_params.const_data_ptr() == buffer.owned(buffer.values).const_data_ptr();
  };
  CHECK(is_view());
  fp32->to(c10::DeviceType::CPU);
  CHECK(is_view());
  const auto bf16 = engine_on<Sharded<optimizer::Bf16WithFp32Main>>(groups.context(), fixture.folder);
  check(*bf16);
  CHECK(bf16->param_buffer().main_params.storage().nbytes() == bf16->param_buffer().main_params.nbytes());
}

TEST_CASE("main weights keep the bits of the file, modes and offload leave the state alone") {
  Groups groups;
  const Fixture fixture("llama");  // stored in fp32
  EngineConfig config;
  config.param_offload = config.optimizer_offload = true;
  const auto engine =
      engine_on<Sharded<optimizer::Bf16WithFp32Main>>(groups.context(), fixture.folder, test::adam(), config);
  const auto plain = engine_on<Sharded<optimizer::Bf16WithFp32Main>>(groups.context(), fixture.folder);
  auto main = engine->optimizer().whole_main_params();
  const checkpoint::SafetensorsFile source(fixture.folder + "/model.safetensors");
  for (std::size_t i = 0; i < main.params().size(); ++i) {
    engine->optimizer().gather(main, i);
    if (groups.world.rank() > 0) continue;
    const auto& param = main.params()[i];
    for (const auto& part : bridge::hf_tensors(engine->config(), *param.desc, *param.value))
      CHECK(same_bits(part.view.reshape(part.shape), source.tensor(part.name)));
  }
  for (int step = 0; step < 2; ++step) {
    const auto mode = engine->train_mode();
    CHECK(engine->train_batch(share(fixture.batch(), groups.world), SftLoss{}).step.stepped);
    plain->train_batch(share(fixture.batch(), groups.world), SftLoss{});
  }
  CHECK(same_bits(engine->param_buffer().main_params, plain->param_buffer().main_params));
  CHECK(same_bits(engine->optimizer().inner().exp_avg, plain->optimizer().inner().exp_avg));
}

TEST_CASE_TEMPLATE("exports come from main weights, the same files with shards and without", P,
                   optimizer::Fp32, optimizer::Bf16WithFp32Main) {
  Groups groups;
  for (const auto* name : {"llama", "qwen2"}) {
    CAPTURE(name);
    const Fixture fixture(name);
    auto config = test::adam();
    config.clip_grad = 0;
    const auto shards = engine_on<Sharded<P>>(groups.context(), fixture.folder, config);
    const auto whole = engine_on<Replicated<P>>(groups.context(), fixture.folder, config);
    shards->train_batch(share(fixture.batch(), groups.world), SftLoss{});
    whole->train_batch(share(fixture.batch(), groups.world), SftLoss{});
    const SharedFolder folder(groups.world);
    shards->save_hf_pretrained(folder.path / "shards");
    whole->save_hf_pretrained(folder.path / "whole");
    CHECK(files_of(folder.path / "shards") == files_of(folder.path / "whole"));
    const checkpoint::SafetensorsFile file(folder.path / "shards" / "model.safetensors");
    test::for_each_hf_tensor(*whole, false, [&](const std::string& part, const Tensor& value) {
      const bool rounded = same_bits(file.tensor(part).to(P::model_dtype), value.to(P::model_dtype));
      CHECK(rounded);
    });
    auto one = shards->get_per_tensor_param().params, other = whole->get_per_tensor_param().params;
    auto expected = other.begin();
    for (const auto& [part, tensor] : one) {
      CHECK(part == expected->name);
      CHECK(same_bits(tensor, expected->tensor));
      ++expected;
    }
  }
}

TEST_CASE_TEMPLATE("checkpoints: the same files from every layout, loaded exactly into every other", P,
                   optimizer::Fp64, optimizer::Bf16WithFp32Main, optimizer::Fp16WithLossScaler) {
  Groups groups;
  auto& world = groups.world;
  const Fixture fixture("qwen3");
  auto config = test::adam();
  config.clip_grad = 0;
  config.initial_loss_scale = 65536;
  const auto shards = engine_on<Sharded<P>>(groups.context(), fixture.folder, config);
  const auto whole = engine_on<Replicated<P>>(groups.context(), fixture.folder, config);
  for (std::int64_t step = 0; step < 2; ++step) {
    const auto batch = share(fixture.batch("train.", 4 * step, 4 * step + 4), world);
    shards->train_batch(batch, SftLoss{});
    whole->train_batch(batch, SftLoss{});
    shards->lr_scheduler_step();
    whole->lr_scheduler_step();
  }
  const SharedFolder folder(world);
  const auto place = [&](const char* name) { return (folder.path / name).string(); };
  const TrainingPosition position{2, 8};
  shards->save_checkpoint(place("shards"), position);
  whole->save_checkpoint(place("whole"), position);
  const auto files = files_of(place("whole"));
  CHECK(files.size() >= 6);
  CHECK(files_of(place("shards")) == files);

  // As many ranks, sharded and not; each rank alone; the first two ranks of more.
  const auto again = engine_on<Sharded<P>>(groups.context(), fixture.folder, config);
  CHECK(again->load_checkpoint(place("whole")).consumed_samples == 8);
  CHECK(same_state(*again, *whole));
  again->save_checkpoint(place("again"), position);
  CHECK(files_of(place("again")) == files);
  const auto unsharded = engine_on<Replicated<P>>(groups.context(), fixture.folder, config);
  unsharded->load_checkpoint(place("shards"));
  CHECK(same_state(*shards, *unsharded));
  const auto alone =
      engine_on<LanguageModelEngine<parallel::Self, P>>(test::self_context(), fixture.folder, config);
  alone->load_checkpoint(place("shards"));
  CHECK(same_state(*shards, *alone));
  if (world.rank() == 0) {
    alone->save_checkpoint(place("alone"), position);
    CHECK(files_of(place("alone")) == files);
  }
  world.barrier();
  if (world.size() > 2) {
    if (auto* pair = groups.add({{0, 1}})) {
      const auto fewer = engine_on<Sharded<P>>(groups.context(*pair), fixture.folder, config);
      fewer->load_checkpoint(place("alone"));
      CHECK(same_state(*fewer, *whole));
      fewer->save_checkpoint(place("pair"), position);
      CHECK(files_of(place("pair")) == files);
    }
    world.barrier();
    again->load_checkpoint(place("pair"));
    CHECK(same_state(*again, *whole));
  }

  // Going on, at the same layout, is bit-exact.
  const auto batch = share(fixture.batch("train.", 8, 12), world);
  const auto expected = shards->train_batch(batch, SftLoss{}), found = again->train_batch(batch, SftLoss{});
  CHECK(found.loss() == expected.loss());
  CHECK(found.step.grad_norm == expected.step.grad_norm);
  CHECK(same_bits(again->param_buffer().main_params, shards->param_buffer().main_params));
  CHECK(same_bits(again->param_buffer().values, shards->param_buffer().values));
  CHECK(same_bits(again->optimizer().inner().exp_avg_sq, shards->optimizer().inner().exp_avg_sq));
  CHECK(again->optimizer().loss_scale() == shards->optimizer().loss_scale());
}

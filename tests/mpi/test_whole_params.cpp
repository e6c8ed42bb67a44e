// Weights and optimizer state on tensor-parallel ranks: loaded from Hugging Face folders, exported, saved and
// restored, against the folders' own bits and hand calculation.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mgfl/parallel/placement.hpp"
#include "mgfl/parallel/whole_values.hpp"
#include "policies/bridge/auto_bridge.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/checkpoint/training_checkpoint.hpp"
#include "policies/model/decoder.hpp"
#include "policies/model/value_model.hpp"
#include "policies/optimizer/mixed_precision_optimizer.hpp"
#include "policies/weight_sync/receiver.hpp"
#include "policies/weight_sync/sender.hpp"
#include "tests/mpi/rank_groups.hpp"
#include "tests/mpi/shared_folder.hpp"
#include "tests/support/doctest.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/files.hpp"

using namespace mgfl;
using bridge::AutoBridge;
using bridge::HfWeights;
using mgfl_test::files_of;
using mgfl_test::Mpi;
using mgfl_test::RankGroups;
using mgfl_test::same_bits;
using mgfl_test::SharedFolder;
using parallel::TensorParallelGroup;
using test::doubles;
using test::numbers;

namespace {

const std::filesystem::path kData = MGFL_TEST_DATA;

/// tp x dp = all ranks, tp fastest.
struct Grid {
  Grid(RankGroups& ranks, int tp)
      : tp(tp),
        tensor_parallel(ranks.world.split(ranks.world.rank() / tp, ranks.world.rank() % tp, "tp")),
        data_parallel(ranks.world.split(ranks.world.rank() % tp, ranks.world.rank() / tp, "dp")) {}
  TensorParallelGroup group() { return TensorParallelGroup(tensor_parallel); }

  int tp;
  Mpi tensor_parallel, data_parallel;
};

/// A model's parameters on a tensor-parallel rank.
template <class Model>
struct Parameters {
  Parameters(const model::TransformerConfig& config, TensorParallelGroup group,
             at::ScalarType dtype = at::kFloat, std::int64_t divisor = 8)
      : model(config, {group, false, divisor}),
        buffer(optimizer::allocate_weights(model.parameters(), dtype)) {
    buffer.values.fill_(-99);
  }

  std::size_t index(const std::string& name) const {
    for (std::size_t i = 0; i < buffer.params.size(); ++i)
      if (buffer.params[i].desc->name == name) return i;
    FAIL("no parameter ", name);
    return 0;
  }
  Tensor& operator[](const std::string& name) { return *buffer.params[index(name)].value; }

  /// Fills rows that no token has with 99.
  void spoil_padding(std::int64_t vocab_size) {
    for (auto& param : buffer.params) {
      if (param.desc->placement != PlacementKind::vocab) continue;
      const auto rows = param.value->size(0);
      const auto filled = std::clamp<std::int64_t>(vocab_size - param.desc->tp.rank * rows, 0, rows);
      param.value->narrow(0, filled, rows - filled).fill_(99);
    }
  }

  Model model;
  optimizer::ParamBuffer buffer;
};

/// Every tensor-parallel size that this world is a multiple of, and that divides the model.
std::vector<int> sizes(const Mpi& world, const model::TransformerConfig& config) {
  std::vector<int> found;
  for (const int tp : {1, 2, 4})
    if (world.size() % tp == 0 && config.num_attention_heads % tp == 0) found.push_back(tp);
  return found;
}

template <class Model>
void check_round_trip(RankGroups& ranks, const AutoBridge& bridge, const HfWeights& source) {
  const auto& config = bridge.config();
  for (const int tp : sizes(ranks.world, config)) {
    CAPTURE(tp);
    Grid grid(ranks, tp);
    Parameters<Model> params(config, grid.group());
    bridge.load_weights(params.buffer.params);
    params.spoil_padding(config.vocab_size);
    auto range = bridge.export_hf_weights(params.buffer.params, std::nullopt, grid.group());
    CHECK(range.size() == source.names().size());
    for (int walk = 0; walk < 2; ++walk) {
      std::size_t i = 0;
      for (const auto& [name, tensor] : range) {
        CAPTURE(name);
        CHECK(name == source.names()[i++]);
        CHECK(same_bits(tensor, source.tensor(name).mul(walk + 1.0)));
        CHECK(tensor.sizes() == at::IntArrayRef(source.shape(name)));
        CHECK(tensor.is_contiguous());
      }
      params.buffer.values.mul_(2);  // which the next walk sees
    }
    params.buffer.values.mul_(0.25);

    const SharedFolder folder(ranks.world);
    parallel::WholeValues whole(params.buffer.params, grid.group());
    if (ranks.world.rank() == 0)
      bridge.save_hf_pretrained(folder.path / "out", whole.params(), [&](std::size_t i) { whole.gather(i); });
    else
      for (std::size_t i = 0; i < whole.params().size(); ++i) whole.gather(i);
    ranks.world.barrier();
    const HfWeights saved(folder.path / "out");
    CHECK(saved.names().size() == source.names().size());
    for (const auto& name : source.names()) CHECK(same_bits(saved.tensor(name), source.tensor(name)));
  }
}

/// A folder with the weights `values` of a hand-made model, the others counted through.
struct HandMade {
  HandMade(const std::filesystem::path& folder, std::map<std::string, std::vector<double>> values) {
    config.architecture = "Qwen2ForCausalLM";
    config.num_layers = 1;
    config.hidden_size = 1;
    config.ffn_hidden_size = 4;
    config.num_attention_heads = 4;
    config.num_query_groups = 2;
    config.kv_channels = 1;
    config.vocab_size = 5;
    config.add_qkv_bias = true;
    std::vector<std::pair<std::string, Tensor>> tensors;
    double next = 100;
    for (const auto& [name, shape] : bridge::hf_parameters(config)) {
      std::int64_t count = 1;
      for (const auto extent : shape) count *= extent;
      auto& own = values[name];
      while (static_cast<std::int64_t>(own.size()) < count) own.push_back(next++);
      tensors.emplace_back(name, doubles(own).view(shape));
    }
    const auto file = folder / concat("model", test_number++, ".safetensors");
    checkpoint::write_safetensors(file, tensors);
    weights = std::make_unique<HfWeights>(file);
  }
  AutoBridge bridge() const {
    bridge::HfConfig own;
    own.config = config;
    return AutoBridge::from_config(own);
  }
  std::map<std::string, std::vector<double>> exported(Parameters<model::Decoder>& params,
                                                      TensorParallelGroup group) const {
    std::map<std::string, std::vector<double>> all;
    for (const auto& [name, tensor] : bridge().export_hf_weights(params.buffer.params, std::nullopt, group))
      all[name] = numbers(tensor);
    return all;
  }

  static inline int test_number = 0;
  model::TransformerConfig config;
  std::unique_ptr<HfWeights> weights;
};

const std::string kLayer = "decoder.layers.0.", kHfLayer = "model.layers.0.";
const std::string kQkv = kLayer + "self_attention.linear_qkv.", kHfAttention = kHfLayer + "self_attn.";

HandMade fused_example(const std::filesystem::path& folder) {
  return {folder,
          {{kHfAttention + "q_proj.weight", {1, 2, 3, 4}},
           {kHfAttention + "k_proj.weight", {5, 6}},
           {kHfAttention + "v_proj.weight", {7, 8}},
           {kHfAttention + "q_proj.bias", {.1, .2, .3, .4}},
           {kHfAttention + "k_proj.bias", {.5, .6}},
           {kHfAttention + "v_proj.bias", {.7, .8}},
           {kHfAttention + "o_proj.weight", {1, 2, 3, 4}},
           {kHfLayer + "mlp.gate_proj.weight", {1, 2, 3, 4}},
           {kHfLayer + "mlp.up_proj.weight", {5, 6, 7, 8}},
           {kHfLayer + "mlp.down_proj.weight", {1, 2, 3, 4}},
           {"model.embed_tokens.weight", {1, 2, 3, 4, 5}},
           {"lm_head.weight", {11, 12, 13, 14, 15}}}};
}

using Numbers = std::vector<double>;

/// Numbers of one rank in [begin, begin + count) of these.
Numbers share(const Numbers& all, int rank, int size) {
  const auto count = static_cast<std::ptrdiff_t>(all.size()) / size;
  return {all.begin() + rank * count, all.begin() + (rank + 1) * count};
}

/// local <- this rank's part of `logical`.
void take_local(const ParamDesc& desc, const Tensor& logical, Tensor& local) {
  const auto dim = parallel::split_dimension(desc);
  for (const auto& piece : parallel::pieces(desc))
    local.narrow(dim, piece.local, piece.length).copy_(logical.narrow(dim, piece.logical, piece.length));
}

}  // namespace

TEST_CASE("folders are exported bit for bit as they were loaded, by any number of tensor-parallel ranks") {
  RankGroups ranks;
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3"}) {
    CAPTURE(name);
    const auto bridge = AutoBridge::from_hf_pretrained(kData / name);
    check_round_trip<model::Decoder>(ranks, bridge, HfWeights(kData / name));
  }
  check_round_trip<model::ValueModel>(
      ranks, AutoBridge::from_hf_pretrained(kData / "qwen3_value", model::Head::value),
      HfWeights(kData / "qwen3_value"));
}

TEST_CASE("a critic made of a language model keeps its new head, and is exported with it") {
  RankGroups ranks;
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "llama", model::Head::value);
  const HfWeights source(kData / "llama");
  for (const int tp : {1, 2}) {
    if (ranks.world.size() % tp) continue;
    CAPTURE(tp);
    Grid grid(ranks, tp);
    Parameters<model::ValueModel> params(bridge.config(), grid.group());
    bridge.load_weights(params.buffer.params);
    for (const auto& [name, tensor] :
         bridge.export_hf_weights(params.buffer.params, std::nullopt, grid.group())) {
      CAPTURE(name);
      CHECK(name != "lm_head.weight");
      CHECK(same_bits(tensor,
                      name == "score.weight" ? zeros({1, 48}, at::kFloat).fill_(-99) : source.tensor(name)));
    }
  }
}

TEST_CASE("what each rank holds of a model of small numbers, by hand; the way back") {
  RankGroups ranks;
  const test::TemporaryFolder folder;
  const auto made = fused_example(folder.path());
  const std::map<int, std::vector<Numbers>> qkv{
      {1, {{1, 2, 5, 7, 3, 4, 6, 8}}},
      {2, {{1, 2, 5, 7}, {3, 4, 6, 8}}},
      {4, {{1, 5, 7}, {2, 5, 7}, {3, 6, 8}, {4, 6, 8}}},
  };
  const std::map<int, std::vector<Numbers>> gate_up{
      {1, {{1, 2, 3, 4, 5, 6, 7, 8}}},
      {2, {{1, 2, 5, 6}, {3, 4, 7, 8}}},
      {4, {{1, 5}, {2, 6}, {3, 7}, {4, 8}}},
  };
  for (const int tp : sizes(ranks.world, made.config)) {
    CAPTURE(tp);
    Grid grid(ranks, tp);
    const int rank = grid.tensor_parallel.rank();
    const auto place = static_cast<std::size_t>(rank);
    Parameters<model::Decoder> params(made.config, grid.group(), at::kDouble, 4);
    bridge::load_weights(*made.weights, made.config, params.buffer.params);
    CHECK(numbers(params[kQkv + "weight"]) == qkv.at(tp)[place]);
    Numbers biases;
    for (const double weight : qkv.at(tp)[place]) biases.push_back(weight / 10);
    CHECK(numbers(params[kQkv + "bias"]) == biases);
    CHECK(numbers(params[kLayer + "mlp.linear_fc1.weight"]) == gate_up.at(tp)[place]);
    CHECK(numbers(params[kLayer + "mlp.linear_fc2.weight"]) == share({1, 2, 3, 4}, rank, tp));
    CHECK(numbers(params[kLayer + "self_attention.linear_proj.weight"]) == share({1, 2, 3, 4}, rank, tp));
    // 5 rows, padded once to a multiple of 4 x tp; the others are zero.
    const std::map<int, Numbers> embedding{{1, {1, 2, 3, 4, 5, 0, 0, 0}},
                                           {2, {1, 2, 3, 4, 5, 0, 0, 0}},
                                           {4, {1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}};
    CHECK(numbers(params["embedding.word_embeddings.weight"]) == share(embedding.at(tp), rank, tp));
    params.spoil_padding(5);

    const auto all = made.exported(params, grid.group());
    for (const auto& name : made.weights->names()) {
      CAPTURE(name);
      CHECK(all.at(name) == numbers(made.weights->tensor(name)));
    }
    CHECK(all.size() == made.weights->names().size());

    const auto& qkv_desc = *params.buffer.params[params.index(kQkv + "bias")].desc;
    CHECK_THROWS_WITH_AS(bridge::hf_parts(made.config, qkv_desc, zeros({9}, at::kDouble)),
                         doctest::Contains("linear_qkv.bias has shape [9], expected ["), RunError);
  }
}

TEST_CASE("with more ranks than kv heads the first rank of each head speaks for it") {
  RankGroups ranks;
  if (ranks.world.size() != 4) return;
  const test::TemporaryFolder folder;
  const auto made = fused_example(folder.path());
  Grid grid(ranks, 4);
  Parameters<model::Decoder> params(made.config, grid.group(), at::kDouble, 4);
  bridge::load_weights(*made.weights, made.config, params.buffer.params);
  params[kQkv + "weight"].add_(10.0 * ranks.world.rank());
  const auto all = made.exported(params, grid.group());
  CHECK(all.at(kHfAttention + "q_proj.weight") == Numbers{1, 12, 23, 34});
  CHECK(all.at(kHfAttention + "k_proj.weight") == Numbers{5, 26});
  CHECK(all.at(kHfAttention + "v_proj.weight") == Numbers{7, 28});
}

TEST_CASE("one rank of a tensor-parallel group sends, the others walk along") {
  RankGroups ranks;
  if (ranks.world.size() != 4) return;
  const auto bridge = AutoBridge::from_hf_pretrained(kData / "qwen3");
  Mpi* pair = ranks.add({{0, 1}});
  Mpi* sync = ranks.add({{0, 2, 3}});
  if (!pair) {
    const test::TemporaryFolder folder;
    const auto report = weight_sync::receive_hf_folder(*sync, 0, folder / "model");
    const HfWeights source(kData / "qwen3"), received(folder / "model");
    CHECK(report.tensors == static_cast<std::int64_t>(source.names().size()));
    CHECK(received.names().size() == source.names().size());
    for (const auto& name : source.names()) CHECK(same_bits(received.tensor(name), source.tensor(name)));
    return;
  }
  const TensorParallelGroup group(*pair);
  Parameters<model::Decoder> params(bridge.config(), group);
  bridge.load_weights(params.buffer.params);
  auto range = bridge.export_hf_weights(params.buffer.params, std::nullopt, group);
  if (sync)
    weight_sync::send_hf_folder(range, {range.specs(), bridge.config_json(at::kFloat)}, *sync);
  else
    weight_sync::walk_along(range);
}

TEST_CASE("large parameters are gathered window by window") {
  RankGroups ranks;
  auto& world = ranks.world;
  const TensorParallelGroup group(world);
  constexpr std::int64_t kRows = 3072, kColumns = 2048;  // 24 MiB in fp32
  const auto logical = test::waves(kRows * kColumns, 0.37).to(at::kFloat).view({kRows, kColumns});
  std::vector<ParamDesc> descs;
  for (const auto placement : {PlacementKind::column, PlacementKind::row, PlacementKind::vocab,
                               PlacementKind::qkv, PlacementKind::gate_up, PlacementKind::replicated}) {
    ParamDesc desc;
    desc.name = concat("weight ", descs.size());
    desc.shape = {kRows, kColumns};
    desc.placement = placement;
    desc.tp = group.place();
    desc.qkv = {2, 4, 256};
    descs.push_back(desc);
  }
  std::vector<Tensor> values;
  for (const auto& desc : descs) {
    values.push_back(empty(parallel::local_shape(desc), at::kFloat));
    take_local(desc, logical, values.back());
  }
  std::vector<ParamRef> params;
  for (std::size_t i = 0; i < descs.size(); ++i) params.push_back({&descs[i], &values[i], nullptr});
  parallel::WholeValues whole(params, group);
  for (std::size_t i = 0; i < descs.size(); ++i) {
    CAPTURE(i);
    whole.gather(i);
    CHECK(same_bits(*whole.params()[i].value, logical));
    CHECK(whole.params()[i].desc->tp.size == 1);
  }
  // What lies whole on a rank is seen where it is.
  CHECK(whole.params().back().value == &values.back());
  CHECK(whole.is_shared() == (world.size() > 1));
  CHECK(whole.scratch().defined() == (world.size() > 1));
  if (world.size() > 1)
    CHECK_THROWS_WITH_AS(parallel::WholeValues{params},
                         doctest::Contains("but the group that makes it whole"), RunError);
}

namespace {

/// A rank's parameters with AdamW's state, all of it cut from numbers that depend on the logical element
/// only.
template <class P, class Sharding>
struct Trained {
  using Stepper = optimizer::MixedPrecisionOptimizer<P, Mpi, optimizer::AdamW, Sharding>;

  Trained(const model::TransformerConfig& config, RankGroups& ranks, int tp, bool filled)
      : alone(ranks.world.split(ranks.world.rank(), 0, "alone")),
        grid(ranks, tp),
        params(config, grid.group(), P::model_dtype),
        buffer(params.buffer) {
    Sharding::cut(buffer, grid.data_parallel.rank(), grid.data_parallel.size());
    optimizer::allocate_training(buffer, P::main_dtype);
    optimizer::OptimizerConfig settings;
    stepper = std::make_unique<Stepper>(buffer, settings, parallel::GroupList<Mpi>{&alone},
                                        &grid.data_parallel, grid.group());
    if (!filled) {
      for (auto* state : states()) state->fill_(-1);
      return;
    }
    double step = 0.1;
    for (auto* state : states()) {
      optimizer::LocalParams local(buffer, *state);
      for (std::size_t i = 0; i < buffer.params.size(); ++i) {
        const auto& desc = *buffer.params[i].desc;
        const auto logical = wave(desc, step += 0.01, config.vocab_size);
        auto& value = *local.params()[i].value;
        take_local(desc, logical, value);
        local.keep(i);
        if (state == states()[0]) buffer.params[i].value->copy_(value);
      }
    }
  }

  /// Zero in padding rows, so that it does not depend on their number.
  static Tensor wave(const ParamDesc& desc, double step, std::int64_t vocab_size) {
    auto shape = desc.shape;
    if (desc.placement == PlacementKind::vocab) shape[0] = vocab_size;
    std::int64_t count = 1;
    for (const auto extent : shape) count *= extent;
    auto logical = zeros(desc.shape, P::main_dtype);
    logical.narrow(0, 0, shape[0]).copy_(test::waves(count, step).view(shape));
    return logical;
  }

  std::vector<Tensor*> states() {
    return {&buffer.main_params, &stepper->inner().exp_avg, &stepper->inner().exp_avg_sq};
  }

  void save(const std::filesystem::path& dir, const AutoBridge& bridge, const Mpi& world) {
    const auto& adamw = stepper->inner();
    checkpoint::WholeTraining whole{stepper->whole_main_params(), {}};
    for (const auto& [name, state] : adamw.states())
      whole.states.emplace_back(name, stepper->whole_params(state, whole.main_params.scratch()));
    checkpoint::TrainingState state;
    state.position.iteration = 3;
    state.scheduler.config = scheduler::constant_schedule(1e-3, 0.1);
    state.scheduler.config.min_lr = 0;
    checkpoint::save_training_tensors(
        dir, state, bridge, std::move(whole),
        [&](optimizer::WholeParams& whole, std::size_t i) { stepper->gather(whole, i); }, world.rank() == 0,
        0);
  }

  Mpi alone;
  Grid grid;
  Parameters<model::Decoder> params;
  optimizer::ParamBuffer& buffer;
  std::unique_ptr<Stepper> stepper;
};

/// Saved from this layout, the checkpoint has the first one's bytes; loaded into it, the state is restored.
template <class P, class Sharding>
void check_checkpoint(RankGroups& ranks, const AutoBridge& bridge, int tp, const std::filesystem::path& first,
                      const std::filesystem::path& dir) {
  const auto& config = bridge.config();
  auto& world = ranks.world;
  Trained<P, Sharding> whole(config, ranks, tp, true), other(config, ranks, tp, false);
  whole.save(dir, bridge, world);
  world.barrier();
  if (!std::filesystem::exists(first)) {
    world.barrier();
    if (world.rank() == 0) std::filesystem::copy(dir, first, std::filesystem::copy_options::recursive);
    world.barrier();
  }
  CHECK(files_of(dir) == files_of(first));
  CHECK(files_of(dir).size() >= 6);

  const auto saved = checkpoint::load(first);
  checkpoint::check_training_tensors(saved, config, other.buffer, other.stepper->inner());
  checkpoint::load_training_tensors(saved, config, other.buffer, other.stepper->inner());
  for (std::size_t i = 0; i < other.buffer.params.size(); ++i) {
    CAPTURE(other.buffer.params[i].desc->name);
    for (std::size_t s = 0; s < 3; ++s) {
      const auto own = [&](const optimizer::ParamBuffer& buffer, const Tensor& state) {
        const auto begin = std::clamp(buffer.offsets[i], buffer.begin, buffer.end) - buffer.begin;
        return state.narrow(0, begin, buffer.owned(buffer.values, i).numel());
      };
      CHECK(same_bits(own(other.buffer, *other.states()[s]), own(whole.buffer, *whole.states()[s])));
    }
    CHECK(same_bits(*other.buffer.params[i].value, *whole.buffer.params[i].value));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("checkpoints: the same files from every layout, loaded exactly into every other", P,
                   optimizer::Fp64, optimizer::Bf16WithFp32Main) {
  RankGroups ranks;
  for (const char* name : {"qwen3", "qwen2"}) {
    CAPTURE(name);
    const auto bridge = AutoBridge::from_hf_pretrained(kData / name);
    const SharedFolder folder(ranks.world);
    const auto first = folder.path / "first";
    for (const int tp : sizes(ranks.world, bridge.config())) {
      CAPTURE(tp);
      check_checkpoint<P, optimizer::Replicated>(ranks, bridge, tp, first,
                                                 folder.path / concat("replicated", tp));
      check_checkpoint<P, optimizer::Sharded>(ranks, bridge, tp, first, folder.path / concat("sharded", tp));
    }
  }
}

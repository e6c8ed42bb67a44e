#include "policies/checkpoint/training_checkpoint.hpp"

#include <utility>

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/bridge/json.hpp"

namespace mgfl::checkpoint {

namespace {

using nlohmann::ordered_json;

/// The parts of whole parameters under PREFIX + Hugging Face name. Parameter i, where it has to be made, has
/// the number first_number + i.
std::vector<NamedTensor> named_parts(const model::TransformerConfig& config,
                                     const optimizer::WholeParams& whole, const std::string& prefix,
                                     std::int64_t first_number) {
  std::vector<NamedTensor> parts;
  for (std::size_t i = 0; i < whole.params().size(); ++i) {
    auto number = whole.is_made() ? first_number + static_cast<std::int64_t>(i) : -1;
    const auto& param = whole.params()[i];
    for (auto& part : bridge::hf_tensors(config, *param.desc, *param.value))
      parts.push_back({prefix + part.name, part.shape, part.view, std::nullopt, std::exchange(number, -1)});
  }
  return parts;
}

constexpr const char* optimizer_names[] = {"adam", "sgd"};  // indexed by the enumerators

const char* name_of(optimizer::OptimizerKind kind) { return optimizer_names[static_cast<std::size_t>(kind)]; }

ordered_json to_json(const scheduler::StableLm2SchedulerConfig& stages) {
  return {{"cosine_max_lr", stages.cosine_max_lr},
          {"cosine_period_samples", stages.cosine_period_samples},
          {"cosine_samples", stages.cosine_samples},
          {"alpha", stages.alpha},
          {"beta", stages.beta},
          {"global_batch_size", stages.global_batch_size},
          {"rsqrt_samples", stages.rsqrt_samples},
          {"decay_samples", stages.decay_samples}};
}

scheduler::StableLm2SchedulerConfig stages_from_json(const ordered_json& json) {
  scheduler::StableLm2SchedulerConfig stages;
  stages.cosine_max_lr = json.at("cosine_max_lr").get<double>();
  stages.cosine_period_samples = json.at("cosine_period_samples").get<std::int64_t>();
  stages.cosine_samples = json.at("cosine_samples").get<std::int64_t>();
  stages.alpha = json.at("alpha").get<double>();
  stages.beta = json.at("beta").get<double>();
  stages.global_batch_size = json.at("global_batch_size").get<std::int64_t>();
  stages.rsqrt_samples = json.at("rsqrt_samples").get<std::int64_t>();
  stages.decay_samples = json.at("decay_samples").get<std::int64_t>();
  return stages;
}

ordered_json to_json(const std::vector<scheduler::GroupRates>& groups) {
  const auto rate = [](const std::optional<double>& value) {
    return value ? ordered_json(*value) : ordered_json();
  };
  auto all = ordered_json::array();
  for (const auto& group : groups)
    all.push_back(
        {{"max_lr", rate(group.max_lr)}, {"min_lr", rate(group.min_lr)}, {"wd_mult", group.wd_mult}});
  return all;
}

std::vector<scheduler::GroupRates> groups_from_json(const ordered_json& json) {
  const auto rate = [](const ordered_json& value) {
    return value.is_null() ? std::nullopt : std::optional(value.get<double>());
  };
  std::vector<scheduler::GroupRates> groups;
  for (const auto& group : json)
    groups.push_back({rate(group.at("max_lr")), rate(group.at("min_lr")), group.at("wd_mult").get<double>()});
  return groups;
}

ordered_json to_json(const TrainingState& state) {
  const auto& schedule = state.scheduler.config;  // a scheduler's, so complete
  const auto stages = schedule.stablelm2_scheduler_config;
  return {{"iteration", state.position.iteration},
          {"consumed_samples", state.position.consumed_samples},
          {"optimizer", name_of(state.optimizer)},
          {"optimizer_updates", state.optimizer_updates},
          {"grad_scaler",
           {{"scale", state.scaler.scale},
            {"growth_tracker", state.scaler.growth_tracker},
            {"hysteresis_tracker", state.scaler.hysteresis_tracker},
            {"dynamic", state.scaler.is_dynamic}}},
          {"opt_param_scheduler",
           {{"num_steps", state.scheduler.num_steps},
            {"init_lr", schedule.init_lr},
            {"max_lr", schedule.max_lr.value()},
            {"min_lr", schedule.min_lr.value()},
            {"lr_warmup_steps", schedule.lr_warmup_steps},
            {"lr_decay_steps", schedule.lr_decay_steps},
            {"lr_decay_style", scheduler::to_string(schedule.lr_decay_style)},
            {"start_wd", schedule.start_wd.value()},
            {"end_wd", schedule.end_wd.value()},
            {"wd_incr_steps", schedule.wd_incr_steps},
            {"wd_incr_style", scheduler::to_string(schedule.wd_incr_style)},
            {"lr_wsd_decay_steps", schedule.lr_wsd_decay_steps},
            {"lr_wsd_decay_style", scheduler::to_string(schedule.lr_wsd_decay_style)},
            {"stablelm2_scheduler_config", stages ? to_json(*stages) : ordered_json()},
            {"param_groups", to_json(state.scheduler.groups)}}}};
}

TrainingState from_json(const ordered_json& json) {
  TrainingState state;
  state.position = {json.at("iteration").get<std::int64_t>(),
                    json.at("consumed_samples").get<std::int64_t>()};
  // Checkpoints of before there was a choice are Adam's, and have no stages.
  const auto name = json.value("optimizer", std::string("adam"));
  check_user(name == "adam" || name == "sgd", "the checkpoint holds the state of the optimizer \"", name,
             "\", which this mgfl does not know; go on with the mgfl that wrote it.");
  state.optimizer = name == "adam" ? optimizer::OptimizerKind::adam : optimizer::OptimizerKind::sgd;
  state.optimizer_updates = json.at("optimizer_updates").get<std::int64_t>();
  const auto& scaler = json.at("grad_scaler");
  state.scaler = {scaler.at("scale").get<float>(), scaler.at("growth_tracker").get<std::int64_t>(),
                  scaler.at("hysteresis_tracker").get<std::int64_t>()};
  state.scaler.is_dynamic = scaler.value("dynamic", state.scaler.hysteresis_tracker != 0);
  const auto& saved = json.at("opt_param_scheduler");
  state.scheduler.num_steps = saved.at("num_steps").get<std::int64_t>();
  auto& schedule = state.scheduler.config;
  schedule.init_lr = saved.at("init_lr").get<double>();
  schedule.max_lr = saved.at("max_lr").get<double>();
  schedule.min_lr = saved.at("min_lr").get<double>();
  schedule.lr_warmup_steps = saved.at("lr_warmup_steps").get<std::int64_t>();
  schedule.lr_decay_steps = saved.at("lr_decay_steps").get<std::int64_t>();
  schedule.lr_decay_style = scheduler::lr_decay_style(saved.at("lr_decay_style").get<std::string>());
  schedule.start_wd = saved.at("start_wd").get<double>();
  schedule.end_wd = saved.at("end_wd").get<double>();
  schedule.wd_incr_steps = saved.at("wd_incr_steps").get<std::int64_t>();
  schedule.wd_incr_style = scheduler::wd_incr_style(saved.at("wd_incr_style").get<std::string>());
  schedule.lr_wsd_decay_steps = saved.at("lr_wsd_decay_steps").get<std::int64_t>();
  schedule.lr_wsd_decay_style = scheduler::wsd_decay_style(saved.at("lr_wsd_decay_style").get<std::string>());
  if (const auto stages = saved.find("stablelm2_scheduler_config");
      stages != saved.end() && !stages->is_null())
    schedule.stablelm2_scheduler_config = stages_from_json(*stages);
  if (const auto groups = saved.find("param_groups"); groups != saved.end())
    state.scheduler.groups = groups_from_json(*groups);
  return state;
}

/// The saved tensor that becomes part of a parameter of that dtype, checked.
Tensor saved_tensor(const Checkpoint& checkpoint, const bridge::HfPart& part, at::ScalarType dtype,
                    const std::string& name) {
  const auto saved = checkpoint.tensor(name);
  check_user(saved.scalar_type() == dtype, checkpoint.folder().string(), ": tensor '", name, "' has dtype ",
             c10::toString(saved.scalar_type()), ", but this run keeps it in ", c10::toString(dtype),
             "; go on with the precision that the checkpoint was trained in.");
  check_user(saved.sizes() == at::IntArrayRef(part.shape), checkpoint.folder().string(), ": tensor '", name,
             "' has shape [", join(saved.sizes()), "], expected [", join(part.shape), "].");
  return saved;
}

}  // namespace

void save_training_tensors(const std::filesystem::path& dir, const TrainingState& state,
                           const bridge::AutoBridge& bridge, WholeTraining whole,
                           function_ref<void(optimizer::WholeParams&, std::size_t)> gather, bool writes,
                           int keep_last) {
  const auto& config = bridge.config();
  std::vector<optimizer::WholeParams*> states{&whole.main_params};
  for (auto& named : whole.states) states.push_back(&named.second);
  const auto count = static_cast<std::int64_t>(whole.main_params.params().size());
  const auto prepare = [&](std::int64_t number) {
    gather(*states[static_cast<std::size_t>(number / count)], static_cast<std::size_t>(number % count));
  };
  FileGroup weights{"model.safetensors", named_parts(config, whole.main_params, "", 0)};
  FileGroup main{"main_params.safetensors", {}};
  std::int64_t number = -1;  // of the parameter that the loop is at
  for (auto& part : weights.tensors) {
    part.dtype = bridge.export_dtype(part.name);
    if (part.prepare >= 0) number = part.prepare;
    if (part.dtype && *part.dtype != part.values.scalar_type())
      main.tensors.push_back(
          {"main_params." + part.name, part.shape, part.values, std::nullopt, std::exchange(number, -1)});
  }
  std::vector<FileGroup> groups{std::move(weights)};
  if (!main.tensors.empty()) groups.push_back(std::move(main));
  for (std::size_t i = 0; i < whole.states.size(); ++i) {
    const auto& [name, state] = whole.states[i];
    groups.push_back({name + ".safetensors",
                      named_parts(config, state, name + ".", static_cast<std::int64_t>(i + 1) * count)});
  }
  if (!writes) {
    for (const auto& group : groups)
      for (const auto& tensor : group.tensors)
        if (tensor.prepare >= 0) prepare(tensor.prepare);
    return;
  }
  const auto& first = groups[0].tensors[0];
  const std::vector<TextFile> texts{
      {"config.json", bridge.config_json(first.dtype.value_or(first.values.scalar_type()))}};
  save(dir, state.position.iteration, groups, to_json(state).dump(1), keep_last, texts, prepare);
}

namespace {

/// Calls visit(part, saved tensor), which fit, for each part of a parameter of the state PREFIX.
template <class Visit>
void match(const Checkpoint& checkpoint, const model::TransformerConfig& config, const ParamRef& param,
           const std::string& prefix, Visit&& visit) {
  for (const auto& part : bridge::hf_parts(config, *param.desc, *param.value)) {
    const auto main = "main_params." + part.name;
    const auto name = prefix.empty() && checkpoint.has(main) ? main : prefix + part.name;
    visit(part, saved_tensor(checkpoint, part, param.value->scalar_type(), name));
  }
}

/// Calls visit(parameters, prefix of their names in a checkpoint) for main weights and states.
template <class Visit>
void for_each_state(const optimizer::ParamBuffer& buffer, const optimizer::AdamW& adamw, Visit&& visit) {
  optimizer::LocalParams main(buffer, buffer.main_params);
  visit(main, "");
  for (const auto& [name, state] : adamw.states()) {
    optimizer::LocalParams local(buffer, state, main.scratch());
    visit(local, concat(name, "."));
  }
}

}  // namespace

void check_same_model(const Checkpoint& checkpoint, const model::TransformerConfig& config) {
  const auto head = config.value_head ? model::Head::value : model::Head::language_model;
  auto saved = bridge::AutoBridge::from_hf_pretrained(checkpoint.folder(), head).config();
  saved.architecture = config.architecture;  // a critic made of a language model keeps that one's
  check_user(saved == config, checkpoint.folder().string(),
             ": its config.json describes another model than this run's; go on with the model that the "
             "checkpoint was made of.");
}

void check_same_optimizer(const Checkpoint& checkpoint, optimizer::OptimizerKind saved,
                          optimizer::OptimizerKind here) {
  check_user(saved == here, checkpoint.folder().string(), ": this run's optimizer is ", name_of(here),
             ", but the checkpoint holds the state of ", name_of(saved),
             "; go on with that one, or start anew from its weights, as from a Hugging Face folder.");
}

TrainingState read_training_state(const Checkpoint& checkpoint) {
  const auto file = (checkpoint.folder() / "state.json").string();
  try {
    return from_json(bridge::parse_json(checkpoint.state(), file));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(concat(file, ": ", error.what(), "; the file is not what mgfl wrote."));
  }
}

void check_training_tensors(const Checkpoint& checkpoint, const model::TransformerConfig& config,
                            const optimizer::ParamBuffer& buffer, const optimizer::AdamW& adamw) {
  const auto momentum = concat("momentum_buffer.", bridge::hf_parameters(config).front().name);
  check_user(
      !adamw.states().empty() || !checkpoint.has(momentum), checkpoint.folder().string(),
      ": the checkpoint holds SGD's momentum, and this run's sgd_momentum is 0; go on with momentum, or "
      "start anew from its weights, as from a Hugging Face folder.");
  check_user(!adamw.sgd || adamw.states().empty() || checkpoint.has(momentum), checkpoint.folder().string(),
             ": the checkpoint holds no momentum of SGD's, as its run had sgd_momentum 0; go on with 0, or "
             "start anew from its weights, as from a Hugging Face folder.");
  for_each_state(buffer, adamw, [&](optimizer::LocalParams& local, const std::string& prefix) {
    for (const auto& param : local.params())
      match(checkpoint, config, param, prefix, [](const bridge::HfPart&, const Tensor&) {});
  });
}

void load_training_tensors(const Checkpoint& checkpoint, const model::TransformerConfig& config,
                           optimizer::ParamBuffer& buffer, optimizer::AdamW& adamw) {
  for_each_state(buffer, adamw, [&](optimizer::LocalParams& local, const std::string& prefix) {
    for (std::size_t i = 0; i < local.params().size(); ++i) {
      const auto& param = local.params()[i];
      match(checkpoint, config, param, prefix, [&](const bridge::HfPart& part, const Tensor& saved) {
        bridge::take_part(*param.desc, part, saved, *param.value);
      });
      local.keep(i);
      if (prefix.empty()) buffer.view(buffer.values, i).copy_(*param.value);
    }
  });
}

}  // namespace mgfl::checkpoint

#include "policies/checkpoint/training_checkpoint.hpp"

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "policies/bridge/hf_tensors.hpp"
#include "policies/bridge/json.hpp"

namespace mgfl::checkpoint {

namespace {

using nlohmann::ordered_json;

/// Views of a flat buffer's parts under PREFIX + Hugging Face name.
std::vector<NamedTensor> named_parts(const model::TransformerConfig& config,
                                     const optimizer::ParamBuffer& buffer, const Tensor& flat,
                                     const std::string& prefix) {
  std::vector<NamedTensor> parts;
  for (std::size_t i = 0; i < buffer.params.size(); ++i)
    for (auto& part : bridge::hf_tensors(config, *buffer.params[i].desc, buffer.view(flat, i)))
      parts.push_back({prefix + part.name, part.shape, part.view});
  return parts;
}

ordered_json to_json(const TrainingState& state) {
  const auto& schedule = state.scheduler.config;
  return {{"iteration", state.position.iteration},
          {"consumed_samples", state.position.consumed_samples},
          {"optimizer_updates", state.optimizer_updates},
          {"grad_scaler",
           {{"scale", state.scaler.scale},
            {"growth_tracker", state.scaler.growth_tracker},
            {"hysteresis_tracker", state.scaler.hysteresis_tracker}}},
          {"opt_param_scheduler",
           {{"num_steps", state.scheduler.num_steps},
            {"init_lr", schedule.init_lr},
            {"max_lr", schedule.max_lr},
            {"min_lr", schedule.min_lr},
            {"lr_warmup_steps", schedule.lr_warmup_steps},
            {"lr_decay_steps", schedule.lr_decay_steps},
            {"lr_decay_style", scheduler::to_string(schedule.lr_decay_style)},
            {"start_wd", schedule.start_wd},
            {"end_wd", schedule.end_wd},
            {"wd_incr_steps", schedule.wd_incr_steps},
            {"wd_incr_style", scheduler::to_string(schedule.wd_incr_style)},
            {"lr_wsd_decay_steps", schedule.lr_wsd_decay_steps},
            {"lr_wsd_decay_style", scheduler::to_string(schedule.lr_wsd_decay_style)}}}};
}

TrainingState from_json(const ordered_json& json) {
  TrainingState state;
  state.position = {json.at("iteration").get<std::int64_t>(),
                    json.at("consumed_samples").get<std::int64_t>()};
  state.optimizer_updates = json.at("optimizer_updates").get<std::int64_t>();
  const auto& scaler = json.at("grad_scaler");
  state.scaler = {scaler.at("scale").get<float>(), scaler.at("growth_tracker").get<std::int64_t>(),
                  scaler.at("hysteresis_tracker").get<std::int64_t>()};
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
  return state;
}

/// The saved tensor that goes into a view of ours, checked.
Tensor saved_tensor(const Checkpoint& checkpoint, const NamedTensor& part, const std::string& name) {
  const auto saved = checkpoint.tensor(name);
  check_user(saved.scalar_type() == part.values.scalar_type(), checkpoint.folder().string(), ": tensor '",
             name, "' has dtype ", c10::toString(saved.scalar_type()), ", but this run keeps it in ",
             c10::toString(part.values.scalar_type()),
             "; go on with the precision that the checkpoint was trained in.");
  check_user(saved.sizes() == at::IntArrayRef(part.shape), checkpoint.folder().string(), ": tensor '", name,
             "' has shape [", join(saved.sizes()), "], expected [", join(part.shape), "].");
  return saved;
}

}  // namespace

void save_training_tensors(const std::filesystem::path& dir, const TrainingState& state,
                           const bridge::AutoBridge& bridge, const optimizer::ParamBuffer& buffer,
                           const optimizer::AdamW& adamw, int keep_last) {
  const auto& config = bridge.config();
  FileGroup weights{"model.safetensors", named_parts(config, buffer, buffer.main_params, "")};
  FileGroup main{"main_params.safetensors", {}};
  for (auto& part : weights.tensors) {
    part.dtype = bridge.export_dtype(part.name);
    if (part.dtype && *part.dtype != part.values.scalar_type())
      main.tensors.push_back({"main_params." + part.name, part.shape, part.values});
  }
  std::vector<FileGroup> groups{std::move(weights)};
  if (!main.tensors.empty()) groups.push_back(std::move(main));
  groups.push_back({"exp_avg.safetensors", named_parts(config, buffer, adamw.exp_avg, "exp_avg.")});
  groups.push_back({"exp_avg_sq.safetensors", named_parts(config, buffer, adamw.exp_avg_sq, "exp_avg_sq.")});
  const std::vector<TextFile> texts{{"config.json", bridge.config_json(groups[0].tensors[0].dtype.value_or(
                                                        buffer.main_params.scalar_type()))}};
  save(dir, state.position.iteration, groups, to_json(state).dump(1), keep_last, texts);
}

namespace {

/// Every tensor of ours beside the saved one.
std::vector<std::pair<Tensor, Tensor>> matched_tensors(const Checkpoint& checkpoint,
                                                       const model::TransformerConfig& config,
                                                       const optimizer::ParamBuffer& buffer,
                                                       const optimizer::AdamW& adamw) {
  std::vector<std::pair<Tensor, Tensor>> matched;
  for (const auto& part : named_parts(config, buffer, buffer.main_params, "")) {
    const auto main = "main_params." + part.name;
    matched.emplace_back(part.values,
                         saved_tensor(checkpoint, part, checkpoint.has(main) ? main : part.name));
  }
  for (const auto& [flat, prefix] :
       {std::pair(adamw.exp_avg, "exp_avg."), std::pair(adamw.exp_avg_sq, "exp_avg_sq.")})
    for (const auto& part : named_parts(config, buffer, flat, prefix))
      matched.emplace_back(part.values, saved_tensor(checkpoint, part, part.name));
  return matched;
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
  matched_tensors(checkpoint, config, buffer, adamw);
}

void load_training_tensors(const Checkpoint& checkpoint, const model::TransformerConfig& config,
                           optimizer::ParamBuffer& buffer, optimizer::AdamW& adamw) {
  for (auto& [ours, saved] : matched_tensors(checkpoint, config, buffer, adamw))
    ours.copy_(saved.view(ours.sizes()));
  buffer.values.copy_(buffer.main_params);
}

}  // namespace mgfl::checkpoint

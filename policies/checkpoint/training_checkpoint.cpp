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
  optimizer::WholeParams* const states[] = {&whole.main_params, &whole.exp_avg, &whole.exp_avg_sq};
  const auto count = static_cast<std::int64_t>(whole.main_params.params().size());
  const auto prepare = [&](std::int64_t number) {
    gather(*states[number / count], static_cast<std::size_t>(number % count));
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
  groups.push_back({"exp_avg.safetensors", named_parts(config, whole.exp_avg, "exp_avg.", count)});
  groups.push_back(
      {"exp_avg_sq.safetensors", named_parts(config, whole.exp_avg_sq, "exp_avg_sq.", 2 * count)});
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

/// Calls visit(parameters, prefix of their names in a checkpoint) for main weights and both moments.
template <class Visit>
void for_each_state(const optimizer::ParamBuffer& buffer, const optimizer::AdamW& adamw, Visit&& visit) {
  optimizer::LocalParams main(buffer, buffer.main_params);
  visit(main, "");
  for (const auto& [state, prefix] :
       {std::pair(adamw.exp_avg, "exp_avg."), std::pair(adamw.exp_avg_sq, "exp_avg_sq.")}) {
    optimizer::LocalParams moment(buffer, state, main.scratch());
    visit(moment, prefix);
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

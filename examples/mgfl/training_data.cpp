#include "examples/mgfl/training_data.hpp"

#include <algorithm>
#include <type_traits>

#include "examples/mgfl/value_data.hpp"
#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/tensor_of.hpp"
#include "policies/checkpoint/safetensors.hpp"
#include "policies/data/packing.hpp"
#include "policies/data/sample_names.hpp"

namespace mgfl::program {

namespace {

template <class T>
std::vector<T> values_of(const Tensor& tensor) {
  const auto flat = tensor.to(c10::CppTypeToScalarType<T>::value).contiguous();
  const auto* begin = flat.template const_data_ptr<T>();
  return {begin, begin + flat.numel()};
}

data::SafetensorsDataset open_safetensors(const std::string& path, bool with_returns) {
  const checkpoint::SafetensorsFile file(path);
  try {
    for (const auto& name : file.names())
      data::check_sample_name(name, data::SampleNames::tensors_of_a_table);
  } catch (const UserError& error) {
    throw UserError(concat(path, " ", error.what()));
  }
  check_user(file.has("input_ids"), path, ": there is no tensor 'input_ids'; it holds ",
             some_of(file.names()), ".");
  const auto shape = file.shape("input_ids");
  check_user(shape.size() == 2, path, ": tensor 'input_ids' has shape [", join(shape),
             "]; it must be [samples, length].");
  // Values of the file, none where it has no such tensor.
  const auto optional = [&]<class T>(std::type_identity<T>, const std::string& name,
                                     bool may_be_bool = false) {
    if (!file.has(name)) return std::vector<T>{};
    check_user(file.shape(name) == shape, path, ": tensor '", name, "' has shape [", join(file.shape(name)),
               "], but input_ids has [", join(shape), "].");
    check_user(!std::is_integral_v<T> || c10::isIntegralType(file.dtype(name), may_be_bool), path,
               ": tensor '", name, "' has dtype ", c10::toString(file.dtype(name)),
               "; it must be an integer type.");
    return values_of<T>(file.tensor(name));
  };
  check_user(!with_returns || file.has("returns"), path,
             ": there is no tensor 'returns', which --value-head learns; it holds ",
             some_of(file.names()), ".");
  constexpr std::type_identity<std::int64_t> whole;
  return data::SafetensorsDataset(
      path, shape[0], shape[1], optional(whole, "input_ids"), optional(whole, "labels"),
      optional(std::type_identity<float>(), "loss_mask"),
      with_returns ? optional(std::type_identity<double>(), "returns") : std::vector<double>{},
      optional(whole, "attention_mask", true));
}

}  // namespace

data::Dataset open_data(const std::vector<std::string>& arguments, std::int64_t sequence_length,
                        std::uint64_t seed, bool shuffle, std::optional<std::int64_t> num_samples,
                        bool with_returns) {
  const auto is_one = [&](const char* ending) {
    return arguments.size() == 1 && arguments[0].ends_with(ending);
  };
  if (is_one(".safetensors")) return open_safetensors(arguments[0], with_returns);
  check_user(!with_returns || is_one(".jsonl"), "the data \"", join(arguments, " "),
             "\" have no returns, which --value-head learns; give one .safetensors or .jsonl file with "
             "returns.");
  if (with_returns) return data::JsonlDataset(arguments[0], true);
  data::GptDatasetConfig config;
  config.sequence_length = sequence_length;
  config.random_seed = static_cast<std::int64_t>(seed & 0xffffffff);
  config.shuffle = shuffle;
  return data::open_dataset(arguments, config, num_samples);
}

Batch read_batch(const data::Dataset& dataset, std::span<const std::int64_t> samples, std::int64_t vocab_size,
                 const SampleLimits& limits) {
  const auto read = data::read_samples(dataset, samples);
  for (std::size_t i = 0; i < read.size(); ++i)
    data::check_token_ids(read[i], vocab_size, dataset.name(), samples[i]);
  const auto check_length = [&](std::optional<std::int64_t> most, const char* flag) {
    for (std::size_t i = 0; most && i < read.size(); ++i)
      check_user(read[i].length() <= *most, dataset.name(), ": sample ", samples[i], " has ",
                 read[i].length(), " tokens, more than ", flag, " ", *most, "; shorten it, or raise ", flag,
                 ".");
  };
  check_length(limits.sequence_length, "--seq-length");
  check_length(limits.max_tokens_per_micro_batch, "--max-tokens-per-micro-batch");
  for (std::size_t i = 0; i < read.size(); ++i)
    if (!read[i].returns.empty())
      check_value_data(concat(dataset.name(), ": sample ", samples[i]), "returns", read[i].returns,
                       read[i].loss_mask);
  const auto packed = data::pack(read);
  Batch batch;
  batch.input_ids = tensor_of(packed.input_ids);
  batch.labels = tensor_of(packed.labels);
  batch.loss_mask = tensor_of(packed.loss_mask);
  batch.cu_seqlens = tensor_of(packed.cu_seqlens);
  if (!packed.returns.empty()) batch.token_fields.set("returns", tensor_of(packed.returns));
  return batch;
}

}  // namespace mgfl::program

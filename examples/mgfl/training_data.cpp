#include "examples/mgfl/training_data.hpp"

#include <algorithm>

#include "examples/mgfl/value_data.hpp"
#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/tensor_of.hpp"
#include "policies/checkpoint/safetensors.hpp"
#include "policies/data/packing.hpp"

namespace mgfl::program {

namespace {

template <class T>
std::vector<T> values_of(const Tensor& tensor, at::ScalarType dtype) {
  const auto flat = tensor.to(dtype).contiguous();
  const auto* begin = flat.const_data_ptr<T>();
  return {begin, begin + flat.numel()};
}

data::SafetensorsDataset open_safetensors(const std::string& path, bool with_returns) {
  const checkpoint::SafetensorsFile file(path);
  check_user(file.has("input_ids"), path, ": there is no tensor 'input_ids'; it holds ",
             some_of(file.names()), ".");
  const auto shape = file.shape("input_ids");
  check_user(shape.size() == 2, path, ": tensor 'input_ids' has shape [", join(shape),
             "]; it must be [samples, length].");
  const auto optional = [&](const std::string& name, bool integral) {
    if (!file.has(name)) return Tensor();
    check_user(file.shape(name) == shape, path, ": tensor '", name, "' has shape [", join(file.shape(name)),
               "], but input_ids has [", join(shape), "].");
    check_user(!integral || c10::isIntegralType(file.dtype(name), false), path, ": tensor '", name,
               "' has dtype ", c10::toString(file.dtype(name)), "; it must be an integer type.");
    return file.tensor(name);
  };
  check_user(!with_returns || file.has("returns"), path,
             ": there is no tensor 'returns', which --value-head ", "learns; it holds ",
             some_of(file.names()), ".");
  const auto labels = optional("labels", true), mask = optional("loss_mask", false),
             returns = with_returns ? optional("returns", false) : Tensor();
  return data::SafetensorsDataset(
      path, shape[0], shape[1], values_of<std::int64_t>(optional("input_ids", true), at::kLong),
      labels.defined() ? values_of<std::int64_t>(labels, at::kLong) : std::vector<std::int64_t>{},
      mask.defined() ? values_of<float>(mask, at::kFloat) : std::vector<float>{},
      returns.defined() ? values_of<float>(returns, at::kFloat) : std::vector<float>{});
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
                 std::optional<std::int64_t> longest) {
  const auto read = data::read_samples(dataset, samples);
  for (std::size_t i = 0; i < read.size(); ++i)
    data::check_token_ids(read[i], vocab_size, dataset.name(), samples[i]);
  for (std::size_t i = 0; longest && i < read.size(); ++i)
    check_user(read[i].length() <= *longest, dataset.name(), ": sample ", samples[i], " has ",
               read[i].length(), " tokens, more than --seq-length ", *longest,
               "; shorten it, or raise --seq-length.");
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

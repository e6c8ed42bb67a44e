#include "mgfl/engine/batch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "mgfl/base/error.hpp"
#include "mgfl/base/optional_text.hpp"
#include "mgfl/base/hash.hpp"
#include "mgfl/tensor/checksum.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/tensor_of.hpp"

namespace mgfl {

namespace {

void check_tensor(const Tensor& tensor, at::ScalarType dtype, std::int64_t numel, const char* name) {
  check_user(tensor.defined(), "batch: ", name, " is missing.");
  check_user(tensor.scalar_type() == dtype, "batch: ", name, " has dtype ",
             c10::toString(tensor.scalar_type()), ", expected ", c10::toString(dtype), ".");
  check_user(tensor.dim() == 1 && tensor.numel() == numel && tensor.is_contiguous(), "batch: ", name, " has ",
             tensor.numel(), " elements in ", tensor.dim(), " dimensions, expected a contiguous vector of ",
             numel, ".");
}

void check_fields(const Fields& fields, std::int64_t rows, const char* kind) {
  for (const auto& [name, values] : fields) {
    check_user(values.defined(), "batch: the field \"", name, "\" is an undefined tensor; leave it out.");
    check_user(values.dim() >= 1 && values.size(0) == rows, "batch: the field \"", name, "\" has shape [",
               join(values.sizes()), "], but one entry for each of the ", rows, " ", kind, " is needed.");
  }
}

/// None where sequences are free.
std::span<const std::int64_t> group_numbers(const Batch& batch) {
  if (!batch.groups.defined()) return {};
  return {batch.groups.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(batch.groups.numel())};
}

/// [tokens] fp64 from one number, one a sequence or one a token.
Tensor temperature_of_tokens(const Batch& batch) {
  const auto& given = batch.temperature;
  const auto tokens = batch.num_tokens(), sequences = batch.num_sequences();
  check_user(c10::isFloatingType(given.scalar_type()), "batch: temperature has dtype ",
             c10::toString(given.scalar_type()), ", expected a floating-point one.");
  check_user(
      given.dim() <= 1 && (given.numel() == 1 || given.numel() == sequences || given.numel() == tokens),
      "batch: temperature has shape [", join(given.sizes()), "]; give one number, one for each of the ",
      sequences, " sequences, or one for each of the ", tokens, " tokens.");
  const auto flat = given.to(at::kDouble).reshape({-1}).contiguous();
  const auto* value = flat.const_data_ptr<double>();
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    check_user(std::isfinite(value[i]) && value[i] >= 0, "batch: temperature is ", value[i], " at entry ", i,
               "; it must be a finite number of 0 or more.");
  if (flat.numel() == 1) return flat.expand({tokens}).contiguous();
  if (flat.numel() == tokens) {
    const bool is_one_number =
        std::all_of(value, value + tokens, [&](double other) { return other == *value; });
    const auto lengths = sequence_lengths(batch);
    check_user(
        tokens != sequences || is_one_number || std::count(lengths.begin(), lengths.end(), 1) == sequences,
        "batch: temperature has ", tokens,
        " entries, which is the number of the sequences and of the "
        "tokens; leave empty sequences out, so that it is clear which is meant.");
    return flat;
  }
  auto result = empty({tokens}, at::kDouble);
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  for (std::int64_t s = 0; s < sequences; ++s)
    std::fill(result.data_ptr<double>() + borders[s], result.data_ptr<double>() + borders[s + 1], value[s]);
  return result;
}

void check_ids(const Batch& batch, std::int64_t vocab_size) {
  const auto* ids = batch.input_ids.const_data_ptr<std::int64_t>();
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>();
  // All ids before any label: labels that were made of a wrong id are not the caller's.
  for (std::int64_t t = 0; t < batch.num_tokens(); ++t)
    check_user(ids[t] >= 0 && ids[t] < vocab_size, "token id ", ids[t], " at position ", t,
               " of input_ids is outside the vocabulary of ", vocab_size,
               " tokens; the data was made with another tokenizer than the model's.");
  for (std::int64_t t = 0; t < batch.num_tokens(); ++t)
    check_user(labels[t] == ignore_index || (labels[t] >= 0 && labels[t] < vocab_size), "label ", labels[t],
               " at position ", t, " is outside the vocabulary of ", vocab_size, " tokens; use ",
               ignore_index, " for positions without a label.");
}

using Lists = std::vector<std::vector<std::int64_t>>;

/// Whole groups in the order of their first sequences, as many as fit into micro_batch_size sequences.
Lists by_sequences(const Batch& batch, std::int64_t micro_batch_size) {
  check_user(micro_batch_size > 0, "the micro-batch size is ", micro_batch_size, "; it must be positive.");
  const auto* group = batch.groups.defined() ? batch.groups.const_data_ptr<std::int64_t>() : nullptr;
  Lists units;
  std::unordered_map<std::int64_t, std::size_t> unit_of;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const auto unit = group ? unit_of.try_emplace(group[s], units.size()).first->second : units.size();
    if (unit == units.size()) units.emplace_back();
    units[unit].push_back(s);
  }
  Lists result;
  for (const auto& unit : units) {
    const auto size = static_cast<std::int64_t>(unit.size());
    check_user(size <= micro_batch_size, "group ", group ? group[unit.front()] : 0, " has ", size,
               " sequences, more than the ", micro_batch_size,
               " of a micro-batch; raise the micro-batch size or make smaller groups.");
    if (result.empty() || static_cast<std::int64_t>(result.back().size()) + size > micro_batch_size)
      result.emplace_back();
    result.back().insert(result.back().end(), unit.begin(), unit.end());
  }
  return result;
}

}  // namespace

void validate_borders(const Batch& batch) {
  check_user(batch.cu_seqlens.defined() && batch.cu_seqlens.numel() >= 1, "batch: cu_seqlens is missing.");
  check_tensor(batch.cu_seqlens, at::kInt, batch.cu_seqlens.numel(), "cu_seqlens");
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  const auto sequences = batch.num_sequences(), tokens = batch.num_tokens();
  check_user(borders[0] == 0 && borders[sequences] == tokens, "batch: cu_seqlens runs from ", borders[0],
             " to ", borders[sequences], ", expected from 0 to the ", tokens, " tokens of input_ids.");
  for (std::int64_t s = 0; s < sequences; ++s)
    check_user(borders[s] <= borders[s + 1], "batch: cu_seqlens falls from ", borders[s], " to ",
               borders[s + 1], " at sequence ", s, "; it must not decrease.");
}

Batch validated(const Batch& batch, std::int64_t vocab_size, bool predicts_tokens) {
  auto result = batch;
  if (!batch.input_ids.defined() && !batch.cu_seqlens.defined()) {  // a rank without sequences
    result.input_ids = empty({0}, at::kLong);
    result.cu_seqlens = zeros({1}, at::kInt);
  }
  const auto tokens = result.num_tokens();
  check_tensor(result.input_ids, at::kLong, tokens, "input_ids");
  validate_borders(result);
  if (!result.labels.defined()) result.labels = next_tokens(result.input_ids, result.cu_seqlens);
  check_tensor(result.labels, at::kLong, tokens, "labels");
  if (!result.loss_mask.defined())
    result.loss_mask = predicts_tokens ? result.labels.ne(ignore_index).to(at::kFloat)
                                       : zeros({tokens}, at::kFloat).fill_(1.0);
  check_tensor(result.loss_mask, at::kFloat, tokens, "loss_mask");
  if (batch.position_ids.defined()) check_tensor(batch.position_ids, at::kLong, tokens, "position_ids");
  if (batch.temperature.defined()) result.temperature = temperature_of_tokens(batch);
  if (batch.groups.defined()) check_tensor(batch.groups, at::kLong, batch.num_sequences(), "groups");
  check_fields(batch.token_fields, tokens, "tokens");
  check_fields(batch.sequence_fields, batch.num_sequences(), "sequences");

  const auto* mask = result.loss_mask.const_data_ptr<float>();
  for (std::int64_t t = 0; t < tokens; ++t)
    check_user(mask[t] >= 0 && std::isfinite(mask[t]), "loss_mask is ", mask[t], " at position ", t,
               "; it must be a finite number of 0 or more.");
  if (batch.position_ids.defined()) {
    const auto* positions = batch.position_ids.const_data_ptr<std::int64_t>();
    for (std::int64_t t = 0; t < tokens; ++t)
      check_user(positions[t] >= 0, "position_ids is ", positions[t], " at position ", t,
                 "; positions count from 0.");
  }
  check_ids(result, vocab_size);
  return result;
}

Batch batch_of(std::span<const std::vector<std::int64_t>> sequences) {
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> borders{0};
  for (const auto& sequence : sequences) {
    check_user(ids.size() + sequence.size() <= std::numeric_limits<std::int32_t>::max(),
               "batch: more than 2147483647 tokens; make it smaller.");
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    borders.push_back(static_cast<std::int32_t>(ids.size()));
  }
  Batch batch;
  batch.input_ids = tensor_of(ids);
  batch.cu_seqlens = tensor_of(borders);
  return batch;
}

Tensor next_tokens(const Tensor& input_ids, const Tensor& cu_seqlens) {
  auto labels = zeros({input_ids.numel()}, at::kLong).fill_(ignore_index);
  const auto* borders = cu_seqlens.const_data_ptr<std::int32_t>();
  for (std::int64_t s = 0; s + 1 < cu_seqlens.numel(); ++s) {
    const std::int64_t begin = borders[s], length = borders[s + 1] - borders[s];
    if (length > 1) labels.narrow(0, begin, length - 1).copy_(input_ids.narrow(0, begin + 1, length - 1));
  }
  return labels;
}

Batch Batch::separate() const {
  auto result = *this;
  for (auto* values : {&result.input_ids, &result.labels, &result.loss_mask, &result.cu_seqlens,
                       &result.position_ids, &result.temperature})
    if (values->defined()) *values = values->clone();
  return result;
}

Batch sequences_of(const Batch& batch, std::int64_t first, std::int64_t last) {
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  const std::int64_t begin = borders[first], tokens = borders[last] - begin;
  const auto cut = [&](const Tensor& t) { return t.defined() ? t.narrow(0, begin, tokens) : t; };
  const auto cut_sequences = [&](const Tensor& t) {
    return t.defined() ? t.narrow(0, first, last - first) : t;
  };
  auto result = batch;
  for (auto* values : {&result.input_ids, &result.labels, &result.loss_mask, &result.position_ids})
    *values = cut(*values);
  result.cu_seqlens = batch.cu_seqlens.narrow(0, first, last - first + 1).sub(begin);
  if (batch.temperature.defined() && batch.temperature.numel() > 1)
    result.temperature = batch.temperature.numel() == batch.num_tokens() ? cut(batch.temperature)
                                                                         : cut_sequences(batch.temperature);
  result.token_fields = batch.token_fields.transformed(cut);
  result.sequence_fields = batch.sequence_fields.transformed(cut_sequences);
  result.groups = cut_sequences(batch.groups);
  return result;
}

MicroBatch select_sequences(const Batch& batch, std::span<const std::int64_t> sequences) {
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  const auto count = static_cast<std::int64_t>(sequences.size());
  auto cu_seqlens = zeros({count + 1}, at::kInt), numbers = empty({count}, at::kLong);
  std::copy(sequences.begin(), sequences.end(), numbers.data_ptr<std::int64_t>());
  auto* own = cu_seqlens.data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto s = sequences[static_cast<std::size_t>(i)];
    own[i + 1] = own[i] + borders[s + 1] - borders[s];
  }
  auto places = empty({own[count]}, at::kLong);
  auto* place = places.data_ptr<std::int64_t>();
  for (const auto s : sequences)
    for (std::int64_t t = borders[s]; t < borders[s + 1]; ++t) *place++ = t;

  const auto tokens_of = [&](const Tensor& t) { return t.defined() ? t.index_select(0, places) : t; };
  const auto sequences_of = [&](const Tensor& t) { return t.defined() ? t.index_select(0, numbers) : t; };
  auto result = batch;
  for (auto* values :
       {&result.input_ids, &result.labels, &result.loss_mask, &result.position_ids, &result.temperature})
    *values = tokens_of(*values);
  result.cu_seqlens = cu_seqlens;
  result.token_fields = batch.token_fields.transformed(tokens_of);
  result.sequence_fields = batch.sequence_fields.transformed(sequences_of);
  result.groups = sequences_of(batch.groups);
  return {std::move(result), std::move(places)};
}

Batch sequences_of_rank(const Batch& global_batch, const TokenBudget& budget, std::int64_t rank) {
  const auto ranks =
      partition_by_token_budget(sequence_lengths(global_batch), budget, group_numbers(global_batch));
  std::vector<std::int64_t> mine;
  for (const auto& micro_batch : ranks[static_cast<std::size_t>(rank)])
    mine.insert(mine.end(), micro_batch.begin(), micro_batch.end());
  std::sort(mine.begin(), mine.end());
  return select_sequences(global_batch, mine).batch;
}

std::vector<std::int64_t> sequence_lengths(const Batch& batch) {
  std::vector<std::int64_t> lengths;
  const auto* borders =
      batch.cu_seqlens.defined() ? batch.cu_seqlens.const_data_ptr<std::int32_t>() : nullptr;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) lengths.push_back(borders[s + 1] - borders[s]);
  return lengths;
}

Lists micro_batch_sequences(const Batch& batch, const MicroBatchLimits& limits, std::int64_t at_least) {
  check_user(limits.max_tokens_per_micro_batch >= 0, "max_tokens_per_micro_batch is ",
             limits.max_tokens_per_micro_batch,
             "; give a positive cap, or 0 for micro-batches by sequences.");
  if (limits.max_tokens_per_micro_batch > 0) {
    TokenBudget budget;
    budget.max_tokens = limits.max_tokens_per_micro_batch;
    budget.min_micro_batches = std::max<std::int64_t>(at_least, 1);
    budget.linear_cost = static_cast<double>(limits.linear_cost);
    return partition_by_token_budget(sequence_lengths(batch), budget, group_numbers(batch)).front();
  }
  auto result = by_sequences(batch, limits.micro_batch_size);
  if (static_cast<std::int64_t>(result.size()) < at_least) result.resize(static_cast<std::size_t>(at_least));
  return result;
}

std::string describe(const Batch& batch) {
  std::uint64_t hash = 0;
  const auto add = [&](const Tensor& part) { hash = hash * 31 + (part.defined() ? checksum(part) : 1); };
  for (const auto* part : {&batch.input_ids, &batch.labels, &batch.loss_mask, &batch.cu_seqlens,
                           &batch.position_ids, &batch.temperature, &batch.groups})
    add(*part);
  for (const auto* fields : {&batch.token_fields, &batch.sequence_fields})
    for (const auto& [name, values] : *fields) {
      hash = hash * 31 + fnv1a(name);
      add(values);
    }
  const auto& o = batch.options;
  return concat(
      "a batch of ", batch.num_sequences(), " sequences and ", batch.num_tokens(), " tokens with checksum ",
      hash, ", options micro_batch_size ", text_or_unset(o.micro_batch_size), " max_tokens_per_micro_batch ",
      text_or_unset(o.max_tokens_per_micro_batch), " outputs ", text_or_unset(o.calculate_entropy), " ",
      text_or_unset(o.calculate_sum_pi_squared), " ", text_or_unset(o.calculate_mean_log_probs),
      " use_fused_kernels ", text_or_unset(o.use_fused_kernels));
}

}  // namespace mgfl

#include "mgfl/engine/batch.hpp"

#include <algorithm>
#include <cmath>

#include "mgfl/base/error.hpp"

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

void validate(const Batch& batch, std::int64_t vocab_size) {
  const auto tokens = batch.num_tokens();
  check_tensor(batch.input_ids, at::kLong, tokens, "input_ids");
  check_tensor(batch.labels, at::kLong, tokens, "labels");
  check_tensor(batch.loss_mask, at::kFloat, tokens, "loss_mask");
  if (batch.position_ids.defined()) check_tensor(batch.position_ids, at::kLong, tokens, "position_ids");
  if (batch.temperature.defined()) check_tensor(batch.temperature, at::kDouble, tokens, "temperature");
  validate_borders(batch);

  const auto* mask = batch.loss_mask.const_data_ptr<float>();
  for (std::int64_t t = 0; t < tokens; ++t)
    check_user(mask[t] >= 0 && std::isfinite(mask[t]), "loss_mask is ", mask[t], " at position ", t,
               "; it must be a finite number of 0 or more.");
  const auto* ids = batch.input_ids.const_data_ptr<std::int64_t>();
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>();
  for (std::int64_t t = 0; t < tokens; ++t) {
    check_user(ids[t] >= 0 && ids[t] < vocab_size, "token id ", ids[t], " at position ", t,
               " of input_ids is outside the vocabulary of ", vocab_size,
               " tokens; the data was made with another tokenizer than the model's.");
    check_user(labels[t] == ignore_index || (labels[t] >= 0 && labels[t] < vocab_size), "label ", labels[t],
               " at position ", t, " is outside the vocabulary of ", vocab_size, " tokens; use ",
               ignore_index, " for positions without a label.");
  }
}

Batch sequences_of(const Batch& batch, std::int64_t first, std::int64_t last) {
  const auto* borders = batch.cu_seqlens.const_data_ptr<std::int32_t>();
  const std::int64_t begin = borders[first], tokens = borders[last] - begin;
  const auto cut = [&](const Tensor& t) { return t.defined() ? t.narrow(0, begin, tokens) : t; };
  return {cut(batch.input_ids),    cut(batch.labels),
          cut(batch.loss_mask),    batch.cu_seqlens.narrow(0, first, last - first + 1).sub(begin),
          cut(batch.position_ids), cut(batch.temperature)};
}

std::vector<MicroBatch> split_micro_batches(const Batch& batch, std::int64_t micro_batch_size,
                                            std::int64_t max_tokens) {
  check_user(max_tokens > 0 || micro_batch_size > 0, "the micro-batch size is ", micro_batch_size,
             "; it must be positive.");
  const auto* borders =
      batch.cu_seqlens.defined() ? batch.cu_seqlens.const_data_ptr<std::int32_t>() : nullptr;
  const auto sequences = batch.num_sequences();
  std::vector<MicroBatch> result;
  for (std::int64_t first = 0; first < sequences;) {
    auto last = first + 1;
    const std::int64_t begin = borders[first];
    if (max_tokens > 0) {
      check_user(borders[last] - begin <= max_tokens, "sequence ", first, " has ", borders[last] - begin,
                 " tokens, more than the cap of ", max_tokens,
                 " tokens per micro-batch; raise --max-tokens-per-micro-batch or shorten the sequence.");
      while (last < sequences && borders[last + 1] - begin <= max_tokens) ++last;
    } else {
      last = std::min(first + micro_batch_size, sequences);
    }
    result.push_back({sequences_of(batch, first, last), first, begin});
    first = last;
  }
  return result;
}

}  // namespace mgfl

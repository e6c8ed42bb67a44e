#include "policies/optimizer/param_buffer.hpp"

#include <algorithm>
#include <utility>

#include "mgfl/parallel/placement.hpp"
#include "mgfl/parallel/share.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl::optimizer {

namespace {
constexpr std::int64_t alignment = 64;  // elements

void point_values(ParamBuffer& buffer) {
  for (std::size_t i = 0; i < buffer.params.size(); ++i)
    *buffer.params[i].value = buffer.view(buffer.values, i);
}

void point_grads(ParamBuffer& buffer) {
  for (std::size_t i = 0; i < buffer.params.size(); ++i)
    *buffer.params[i].main_grad = buffer.view(buffer.main_grads, i);
}

bool main_params_are_values(const ParamBuffer& buffer) {
  return buffer.main_params.defined() && buffer.main_params.scalar_type() == buffer.values.scalar_type();
}

/// What lies in [first, last) of both, as an offset and a length; the length is 0 where nothing does.
std::pair<std::int64_t, std::int64_t> common(const ParamBuffer& buffer, std::size_t param) {
  const auto offset = buffer.offsets[param];
  const auto first = std::clamp(offset, buffer.begin, buffer.end);
  const auto last =
      std::clamp(offset + parallel::local_numel(*buffer.params[param].desc), buffer.begin, buffer.end);
  return {first, last - first};
}
}  // namespace

Tensor ParamBuffer::view(const Tensor& flat, std::size_t param) const {
  const auto& desc = *params[param].desc;
  return flat.narrow(0, offsets[param], parallel::local_numel(desc)).view(parallel::local_shape(desc));
}

Tensor ParamBuffer::owned(const Tensor& flat, std::size_t param) const {
  const auto [first, count] = common(*this, param);
  return flat.narrow(0, first, count);
}

Tensor ParamBuffer::counted(const Tensor& flat, std::size_t param) const {
  const auto [first, count] = common(*this, param);
  const auto last = offsets[param] + parallel::counted_numel(*params[param].desc);
  return flat.narrow(0, first, std::clamp<std::int64_t>(last - first, 0, count));
}

LocalParams::LocalParams(const ParamBuffer& buffer, Tensor state, Tensor scratch)
    : buffer_(&buffer), state_(std::move(state)), scratch_(std::move(scratch)) {
  if (!buffer.is_whole() && !scratch_.defined()) {
    std::int64_t largest = 0;
    for (const auto& param : buffer.params) largest = std::max(largest, parallel::local_numel(*param.desc));
    scratch_ = empty({largest}, state_.scalar_type());
  }
  for (std::size_t i = 0; i < buffer.params.size(); ++i) {
    const auto& desc = *buffer.params[i].desc;
    values_.push_back(
        scratch_.defined()
            ? scratch_.narrow(0, 0, parallel::local_numel(desc)).view(parallel::local_shape(desc))
            : buffer.view(state_, i));
  }
  for (std::size_t i = 0; i < buffer.params.size(); ++i)
    params_.push_back({buffer.params[i].desc, &values_[i], nullptr});
}

void LocalParams::keep(std::size_t param) {
  if (!is_shard()) return;
  const auto [first, count] = common(*buffer_, param);
  state_.narrow(0, first - buffer_->begin, count)
      .copy_(values_[param].view({-1}).narrow(0, count > 0 ? first - buffer_->offsets[param] : 0, count));
}

ParamBuffer allocate_weights(std::vector<ParamRef> params, at::ScalarType model_dtype) {
  ParamBuffer buffer;
  buffer.params = std::move(params);
  for (const auto& param : buffer.params) {
    buffer.offsets.push_back(buffer.numel);
    buffer.numel += (parallel::local_numel(*param.desc) + alignment - 1) / alignment * alignment;
  }
  buffer.end = buffer.numel;
  buffer.values = zeros({buffer.numel}, model_dtype);
  point_values(buffer);
  return buffer;
}

void shard(ParamBuffer& buffer, int rank, int size) {
  buffer.counts.clear();
  for (int other = 0; other < size; ++other) {
    const auto [first, last] = parallel::share_of(buffer.numel / alignment, other, size);
    buffer.counts.push_back((last - first) * alignment);
    if (other == rank) {
      buffer.begin = first * alignment;
      buffer.end = last * alignment;
    }
  }
}

void allocate_training(ParamBuffer& buffer, at::ScalarType main_dtype) {
  buffer.main_params = buffer.owned(buffer.values).to(main_dtype);  // a view where that is the dtype already
  buffer.main_grads = zeros({buffer.numel}, main_dtype);
  point_grads(buffer);
}

void fill_main_params(ParamBuffer& buffer, function_ref<void(std::span<const ParamRef>)> fill) {
  std::vector<ParamRef> params;
  for (const auto& param : buffer.params) params.push_back({param.desc, param.main_grad, nullptr});
  buffer.main_grads.copy_(buffer.values);
  fill(params);
  buffer.main_params.copy_(buffer.owned(buffer.main_grads));
  buffer.main_grads.zero_();
}

void move_weights(ParamBuffer& buffer, c10::DeviceType device) {
  if (buffer.values.device().type() == device) return;
  buffer.values = buffer.values.to(c10::Device(device));
  if (main_params_are_values(buffer)) buffer.main_params = buffer.owned(buffer.values);
  point_values(buffer);
}

void move_main_params(ParamBuffer& buffer, c10::DeviceType device) {
  if (!main_params_are_values(buffer)) buffer.main_params = buffer.main_params.to(c10::Device(device));
}

void move_grads(ParamBuffer& buffer, c10::DeviceType device) {
  if (buffer.main_grads.device().type() == device) return;
  buffer.main_grads = buffer.main_grads.to(c10::Device(device));
  point_grads(buffer);
}

}  // namespace mgfl::optimizer

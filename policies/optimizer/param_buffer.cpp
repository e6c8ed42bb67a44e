#include "policies/optimizer/param_buffer.hpp"

#include "mgfl/tensor/factory.hpp"

namespace mgfl::optimizer {

namespace {
constexpr std::int64_t alignment = 64;  // elements

std::int64_t numel_of(const ParamDesc& desc) {
  std::int64_t numel = 1;
  for (auto extent : desc.shape) numel *= extent;
  return numel;
}

void point_values(ParamBuffer& buffer) {
  for (std::size_t i = 0; i < buffer.params.size(); ++i)
    *buffer.params[i].value = buffer.view(buffer.values, i);
}

void point_grads(ParamBuffer& buffer) {
  for (std::size_t i = 0; i < buffer.params.size(); ++i)
    *buffer.params[i].main_grad = buffer.view(buffer.main_grads, i);
}
}  // namespace

Tensor ParamBuffer::view(const Tensor& flat, std::size_t param) const {
  const auto& desc = *params[param].desc;
  return flat.narrow(0, offsets[param], numel_of(desc)).view(desc.shape);
}

MainParams::MainParams(const ParamBuffer& buffer) {
  for (std::size_t i = 0; i < buffer.params.size(); ++i) values.push_back(buffer.view(buffer.main_params, i));
  for (std::size_t i = 0; i < buffer.params.size(); ++i)
    params.push_back({buffer.params[i].desc, &values[i], nullptr});
}

ParamBuffer allocate_weights(std::vector<ParamRef> params, at::ScalarType model_dtype) {
  ParamBuffer buffer;
  buffer.params = std::move(params);
  for (const auto& param : buffer.params) {
    buffer.offsets.push_back(buffer.numel);
    buffer.numel += (numel_of(*param.desc) + alignment - 1) / alignment * alignment;
  }
  buffer.values = zeros({buffer.numel}, model_dtype);
  point_values(buffer);
  return buffer;
}

void allocate_training(ParamBuffer& buffer, at::ScalarType main_dtype) {
  buffer.main_params =
      buffer.values.scalar_type() == main_dtype ? buffer.values : buffer.values.to(main_dtype);
  buffer.main_grads = zeros({buffer.numel}, main_dtype);
  point_grads(buffer);
}

void move_weights(ParamBuffer& buffer, c10::DeviceType device) {
  if (buffer.values.device().type() == device) return;
  const bool shared = buffer.main_params.defined() && buffer.main_params.is_same(buffer.values);
  buffer.values = buffer.values.to(c10::Device(device));
  if (shared) buffer.main_params = buffer.values;
  point_values(buffer);
}

void move_main_params(ParamBuffer& buffer, c10::DeviceType device) {
  if (!buffer.main_params.is_same(buffer.values))
    buffer.main_params = buffer.main_params.to(c10::Device(device));
}

void move_grads(ParamBuffer& buffer, c10::DeviceType device) {
  if (buffer.main_grads.device().type() == device) return;
  buffer.main_grads = buffer.main_grads.to(c10::Device(device));
  point_grads(buffer);
}

}  // namespace mgfl::optimizer

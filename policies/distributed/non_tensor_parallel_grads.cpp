#include "policies/distributed/non_tensor_parallel_grads.hpp"

#include <vector>

#include "mgfl/parallel/placement.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl::distributed {

namespace {

/// Rows of a gradient of which this rank has a summand, and all rows of the logical parameter that are summed
/// with them: a rank without a summand for some adds nothing there.
struct Summed {
  Tensor own;
  std::int64_t offset, numel;  // of the logical rows in the collective's buffer
  std::int64_t first;          // of the own rows' elements among them
};

/// Ranks that share a kv group hold its key and value rows; all groups' rows are summed together.
void add_shared_kv(const ParamRef& param, std::int64_t& total, std::vector<Summed>& found) {
  const auto& desc = *param.desc;
  const auto shared = parallel::pieces(desc).back();
  if (shared.copies == 1) return;
  const auto width = desc.shape.size() > 1 ? desc.shape[1] : 1;
  const auto numel = shared.length * width;
  const auto group = desc.tp.rank / shared.copies;
  found.push_back({param.main_grad->narrow(0, shared.local, shared.length).view({-1}), total,
                   desc.qkv.groups * numel, group * numel});
  total += desc.qkv.groups * numel;
}

}  // namespace

void _allreduce_non_tensor_model_parallel_grads(std::span<const ParamRef> params,
                                                const parallel::TensorParallelGroup& group) {
  if (group.size() == 1) return;
  std::vector<Summed> found;
  std::int64_t total = 0;
  for (const auto& param : params) {
    if (param.desc->placement == PlacementKind::qkv) add_shared_kv(param, total, found);
    if (!param.desc->partial_grad) continue;
    const auto numel = param.main_grad->numel();
    found.push_back({param.main_grad->view({-1}), total, numel, 0});
    total += numel;
  }
  if (found.empty()) return;
  auto buffer = zeros({total}, found.front().own.scalar_type());
  const auto place = [&](const Summed& part) {
    return buffer.narrow(0, part.offset + part.first, part.own.numel());
  };
  for (const auto& part : found) place(part).copy_(part.own);
  group.all_reduce(buffer);
  for (const auto& part : found) part.own.copy_(place(part));
}

}  // namespace mgfl::distributed

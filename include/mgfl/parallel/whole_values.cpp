#include "mgfl/parallel/whole_values.hpp"

#include <algorithm>

#include "mgfl/base/error.hpp"
#include "mgfl/parallel/placement.hpp"
#include "mgfl/tensor/factory.hpp"

namespace mgfl::parallel {

namespace {

constexpr std::int64_t kWindow = 16 << 20;  // bytes of all ranks' rows in one gather

std::int64_t logical_numel(const ParamDesc& desc) {
  std::int64_t numel = 1;
  for (const auto extent : desc.shape) numel *= extent;
  return numel;
}

}  // namespace

WholeValues::WholeValues(std::span<const ParamRef> params, TensorParallelGroup group, const Tensor& scratch)
    : group_(group), locals_(params.begin(), params.end()), scratch_(scratch) {
  std::int64_t largest = 0;
  Tensor like;
  for (const auto& param : locals_) {
    descs_.push_back(*param.desc);
    descs_.back().tp = {};
    if (is_whole(*param.desc)) continue;
    check_run(param.desc->tp.size == group_.size(), "parameter ", param.desc->name, " is cut for ",
              param.desc->tp.size, " tensor-parallel ranks, but the group that makes it whole has ",
              group_.size(), ".");
    largest = std::max(largest, logical_numel(*param.desc));
    like = *param.value;
  }
  if (like.defined()) {
    if (!scratch_.defined()) scratch_ = empty({largest}, like.scalar_type()).to(like.device());
    shared_.resize(locals_.size());
  }
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    const auto& desc = *locals_[i].desc;
    auto* value = locals_[i].value;
    if (!is_whole(desc)) {
      shared_[i] = scratch_.narrow(0, 0, logical_numel(desc)).view(desc.shape);
      value = &shared_[i];
    }
    params_.push_back({&descs_[i], value, nullptr});
  }
}

void WholeValues::gather(std::size_t param) {
  const auto& desc = *locals_[param].desc;
  if (is_whole(desc)) return;
  const auto& local = *locals_[param].value;
  auto& logical = shared_[param];
  const auto row_bytes = group_.size() * static_cast<std::int64_t>(local.nbytes()) / local.size(0);
  const auto step = std::max<std::int64_t>(1, kWindow / row_bytes);
  for (std::int64_t begin = 0; begin < local.size(0); begin += step) {
    const auto own = local.narrow(0, begin, std::min(step, local.size(0) - begin));
    auto shape = own.sizes().vec();
    shape.insert(shape.begin(), group_.size());
    auto rows = empty(shape, own.scalar_type()).to(own.device());
    group_.all_gather(own, rows);
    // Rows that several ranks hold are the first one's, which is the last to write.
    for (int rank = group_.size(); rank-- > 0;) put_rows(desc, rank, begin, rows.select(0, rank), logical);
  }
}

}  // namespace mgfl::parallel

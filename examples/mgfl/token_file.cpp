#include "examples/mgfl/token_file.hpp"

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/tensor_of.hpp"
#include "policies/checkpoint/safetensors.hpp"

namespace mgfl::program {

namespace {

/// Optional tensors of one file, converted to the dtype that a batch wants and checked against input_ids'
/// shape.
class Reader {
 public:
  Reader(const std::string& path, const std::string& prefix) : file_(path), path_(path), prefix_(prefix) {
    if (!file_.has(prefix_ + "input_ids") && file_.has(prefix_ + ".input_ids")) prefix_ += ".";
    check_user(file_.has(prefix_ + "input_ids"), path, ": there is no tensor '", prefix_,
               "input_ids'; it holds ", some_of(file_.names()), ".");
  }

  Tensor integers(const std::string& name) const {
    const auto tensor = read(name);
    if (!tensor.defined()) return tensor;
    check_user(c10::isIntegralType(tensor.scalar_type(), false), path_, ": tensor '", prefix_, name,
               "' has dtype ", c10::toString(tensor.scalar_type()), "; it must be an integer type.");
    return tensor.to(at::kLong);
  }

  Tensor floats(const std::string& name) const {
    const auto tensor = read(name);
    return tensor.defined() ? tensor.to(at::kFloat) : tensor;
  }

  void check_shape(const Tensor& tensor, const std::string& name, at::IntArrayRef shape) const {
    check_user(!tensor.defined() || tensor.sizes() == shape, path_, ": tensor '", prefix_, name,
               "' has shape [", tensor.defined() ? join(tensor.sizes()) : "", "], but input_ids has [",
               join(shape), "].");
  }

  const std::string& path() const { return path_; }
  const std::string& prefix() const { return prefix_; }

 private:
  Tensor read(const std::string& name) const {
    return file_.has(prefix_ + name) ? file_.tensor(prefix_ + name).clone() : Tensor();
  }

  checkpoint::SafetensorsFile file_;
  std::string path_, prefix_;
};

/// Flat index of every real token, row by row, and the rows' lengths as cu_seqlens.
void places_of_rows(const Reader& reader, const Tensor& mask, std::int64_t rows, std::int64_t length,
                    std::vector<std::int64_t>& places, std::vector<std::int32_t>& borders) {
  const auto* flags = mask.defined() ? mask.const_data_ptr<std::int64_t>() : nullptr;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t begin = 0, end = length;
    if (flags) {
      const auto* row = flags + r * length;
      for (std::int64_t t = 0; t < length; ++t)
        check_user(row[t] == 0 || row[t] == 1, reader.path(), ": tensor '", reader.prefix(),
                   "attention_mask' is ", row[t], " in row ", r, " at position ", t,
                   "; it must be 1 for tokens and 0 for padding.");
      while (begin < length && row[begin] == 0) ++begin;
      while (end > begin && row[end - 1] == 0) --end;
      for (auto t = begin; t < end; ++t)
        check_user(row[t] != 0, reader.path(), ": tensor '", reader.prefix(),
                   "attention_mask' has a hole in row ", r, " at position ", t,
                   "; padding may stand before or after a sequence, not inside.");
    }
    for (auto t = begin; t < end; ++t) places.push_back(r * length + t);
    borders.push_back(static_cast<std::int32_t>(places.size()));
  }
}

/// The token after each position in its sequence; the last one of a sequence predicts nothing.
Tensor next_tokens(const Tensor& ids, const Tensor& cu_seqlens) {
  auto labels = zeros({ids.numel()}, at::kLong).fill_(ignore_index);
  const auto* borders = cu_seqlens.const_data_ptr<std::int32_t>();
  for (std::int64_t s = 0; s + 1 < cu_seqlens.numel(); ++s) {
    const std::int64_t begin = borders[s], length = borders[s + 1] - borders[s];
    if (length > 1) labels.narrow(0, begin, length - 1).copy_(ids.narrow(0, begin + 1, length - 1));
  }
  return labels;
}

}  // namespace

Tensor TokenFile::in_file_shape(const Tensor& values) const {
  std::int64_t positions = 1;
  for (auto extent : shape) positions *= extent;
  std::vector<std::int64_t> flat{positions}, whole = shape;
  for (std::int64_t d = 1; d < values.dim(); ++d) {
    flat.push_back(values.size(d));
    whole.push_back(values.size(d));
  }
  auto out = zeros(flat, values.scalar_type());
  out.index_copy_(0, places, values);
  return out.view(whole);
}

TokenFile read_token_file(const std::string& path, const std::string& prefix) {
  const Reader reader(path, prefix);
  const auto ids = reader.integers("input_ids").contiguous();
  check_user(ids.dim() == 1 || ids.dim() == 2, path, ": tensor '", reader.prefix(), "input_ids' has ",
             ids.dim(), " dimensions; it must be [batch, length], or [tokens] with cu_seqlens.");
  const auto labels = reader.integers("labels"), mask = reader.integers("attention_mask"),
             positions = reader.integers("position_ids");
  auto cu_seqlens = reader.integers("cu_seqlens");
  const auto loss_mask = reader.floats("loss_mask");
  reader.check_shape(labels, "labels", ids.sizes());
  reader.check_shape(mask, "attention_mask", ids.sizes());
  reader.check_shape(positions, "position_ids", ids.sizes());
  reader.check_shape(loss_mask, "loss_mask", ids.sizes());

  TokenFile file;
  file.shape.assign(ids.sizes().begin(), ids.sizes().end());
  std::vector<std::int64_t> places;
  std::vector<std::int32_t> borders{0};
  if (cu_seqlens.defined()) {
    check_user(ids.dim() == 1 || ids.size(0) == 1, path, ": with cu_seqlens, '", reader.prefix(),
               "input_ids' must be [tokens] or [1, tokens], not [", join(ids.sizes()), "].");
    check_user(!mask.defined(), path, ": '", reader.prefix(),
               "attention_mask' and cu_seqlens cannot both be given; packed sequences have no padding.");
    check_user(cu_seqlens.dim() == 1, path, ": '", reader.prefix(), "cu_seqlens' has ", cu_seqlens.dim(),
               " dimensions; it must be one list of borders.");
    for (std::int64_t t = 0; t < ids.numel(); ++t) places.push_back(t);
    cu_seqlens = cu_seqlens.to(at::kInt).contiguous();
  } else {
    const auto rows = ids.dim() == 2 ? ids.size(0) : 1, length = ids.dim() == 2 ? ids.size(1) : ids.size(0);
    places_of_rows(reader, mask.defined() ? mask.contiguous() : mask, rows, length, places, borders);
    cu_seqlens = tensor_of(borders);
  }
  file.places = tensor_of(places);

  const auto gather = [&](const Tensor& t) {
    return t.reshape({-1}).index_select(0, file.places).contiguous();
  };
  auto& batch = file.batch;
  batch.input_ids = gather(ids);
  batch.cu_seqlens = cu_seqlens;
  if (positions.defined()) batch.position_ids = gather(positions);
  batch.labels = labels.defined() ? gather(labels) : Tensor();
  batch.loss_mask =
      loss_mask.defined() ? gather(loss_mask) : zeros({batch.num_tokens()}, at::kFloat).fill_(1.0);
  if (!batch.labels.defined()) {
    // Borders are checked before they are used as such.
    batch.labels = zeros({batch.num_tokens()}, at::kLong).fill_(ignore_index);
    validate_borders(batch);
    batch.labels = next_tokens(batch.input_ids, cu_seqlens);
  }
  return file;
}

}  // namespace mgfl::program

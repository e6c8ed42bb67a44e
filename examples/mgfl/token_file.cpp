#include "examples/mgfl/token_file.hpp"

#include <limits>
#include <span>
#include <utility>

#include "examples/mgfl/value_data.hpp"
#include "mgfl/base/error.hpp"
#include "policies/checkpoint/safetensors.hpp"

namespace mgfl::program {

namespace {

/// Optional tensors of one file, each of input_ids' shape and of the dtype that a batch wants.
class Reader {
 public:
  Reader(const std::string& path, const std::string& prefix) : file_(path), path_(path), prefix_(prefix) {
    if (!file_.has(prefix_ + "input_ids") && file_.has(prefix_ + ".input_ids")) prefix_ += ".";
    check_user(file_.has(prefix_ + "input_ids"), path, ": there is no tensor '", prefix_,
               "input_ids'; it holds ", some_of(file_.names()), ".");
    shape_ = file_.shape(prefix_ + "input_ids");
    check_user(shape_.size() == 1 || shape_.size() == 2, path, ": tensor '", prefix_, "input_ids' has ",
               shape_.size(), " dimensions; it must be [batch, length], or [tokens] with cu_seqlens.");
  }

  const std::vector<std::int64_t>& shape() const { return shape_; }
  const std::string& prefix() const { return prefix_; }
  bool has(const std::string& name) const { return file_.has(prefix_ + name); }

  Tensor integers(const std::string& name, bool may_be_bool = false) const {
    if (!has(name)) return {};
    const auto tensor = file_.tensor(prefix_ + name);
    check_user(c10::isIntegralType(tensor.scalar_type(), may_be_bool), path_, ": tensor '", prefix_, name,
               "' has dtype ", c10::toString(tensor.scalar_type()), "; it must be an integer type.");
    return tensor.to(at::kLong);
  }

  /// int64 [rows, length]; undefined where the file has none.
  Tensor integer_rows(const std::string& name, bool may_be_bool = false) const {
    return rows(integers(name, may_be_bool), name);
  }
  /// The same for real numbers, in the given dtype.
  Tensor real_rows(const std::string& name, at::ScalarType dtype) const {
    return rows(has(name) ? file_.tensor(prefix_ + name).to(dtype) : Tensor(), name);
  }

 private:
  Tensor rows(const Tensor& tensor, const std::string& name) const {
    if (!tensor.defined()) return tensor;
    check_user(tensor.sizes() == at::IntArrayRef(shape_), path_, ": tensor '", prefix_, name, "' has shape [",
               join(tensor.sizes()), "], but input_ids has [", join(shape_), "].");
    // A copy: the file's own memory goes with the reader.
    return tensor.reshape({shape_.size() == 2 ? shape_[0] : 1, shape_.back()}).clone();
  }

  checkpoint::SafetensorsFile file_;
  std::string path_, prefix_;
  std::vector<std::int64_t> shape_;
};

/// The borders that the file gives, int32; undefined where it has none.
Tensor borders_of(const Reader& reader, const std::string& path) {
  const auto borders = reader.integers("cu_seqlens");
  if (!borders.defined()) return borders;
  check_user(reader.shape().size() == 1 || reader.shape()[0] == 1, path, ": with cu_seqlens, '",
             reader.prefix(), "input_ids' must be [tokens] or [1, tokens], not [", join(reader.shape()),
             "].");
  check_user(!reader.has("attention_mask"), path, ": '", reader.prefix(),
             "attention_mask' and cu_seqlens cannot both be given; packed sequences have no padding.");
  check_user(borders.dim() == 1, path, ": '", reader.prefix(), "cu_seqlens' has ", borders.dim(),
             " dimensions; it must be one list of borders.");
  const auto list = borders.contiguous();
  for (std::int64_t i = 0; i < list.numel(); ++i) {
    const auto border = list.const_data_ptr<std::int64_t>()[i];
    check_user(border >= 0 && border <= std::numeric_limits<std::int32_t>::max(), path, ": '",
               reader.prefix(), "cu_seqlens' is ", border, " at entry ", i,
               "; a border must be from 0 to 2147483647.");
  }
  return list.to(at::kInt).clone();  // not the file's own memory
}

PaddedBatch padded_batch(const Reader& reader) {
  PaddedBatch padded;
  padded.input_ids = reader.integer_rows("input_ids");
  padded.attention_mask = reader.integer_rows("attention_mask", true);
  padded.labels = reader.integer_rows("labels");
  padded.position_ids = reader.integer_rows("position_ids");
  padded.loss_mask = reader.real_rows("loss_mask", at::kFloat);
  return padded;
}

TokenFile packed(const std::string& path, const Reader& reader, const PaddedBatch& padded,
                 std::int64_t vocab_size) {
  const auto borders = borders_of(reader, path);
  TokenFile file{{}, reader.shape(), reader.prefix()};
  try {
    file.packed = pack(padded);
    // Packed sequences are one row whose borders the file gives.
    if (borders.defined()) file.packed.batch.cu_seqlens = borders;
    file.packed.batch = validated(file.packed.batch, vocab_size);
  } catch (const UserError& error) {
    const auto names = reader.prefix().empty() ? std::string() : concat(" (", reader.prefix(), "*)");
    throw UserError(concat(path, names, ": ", error.what()));
  }
  return file;
}

template <class Real>
std::span<const Real> numbers_of(const Tensor& tensor) {
  return {tensor.const_data_ptr<Real>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

Tensor TokenFile::in_file_shape(const Tensor& values) const {
  auto whole = shape;
  for (std::int64_t d = 1; d < values.dim(); ++d) whole.push_back(values.size(d));
  return packed.unpack(values).view(whole);
}

TokenFile read_token_file(const std::string& path, const std::string& prefix, std::int64_t vocab_size) {
  const Reader reader(path, prefix);
  return packed(path, reader, padded_batch(reader), vocab_size);
}

TokenFile read_value_file(const std::string& path, const std::string& prefix, std::int64_t vocab_size) {
  const Reader reader(path, prefix);
  auto padded = padded_batch(reader);
  // A value head predicts no token: without labels there is none to be ignored, not even the last one.
  if (!padded.labels.defined()) padded.labels = padded.input_ids;
  constexpr std::pair<const char*, const char*> fields[] = {{"returns", "returns"}, {"old_values", "values"}};
  for (const auto& [name, field] : fields)
    if (reader.has(name)) padded.token_fields.set(field, reader.real_rows(name, at::kDouble));

  auto file = packed(path, reader, padded, vocab_size);
  auto& batch = file.packed.batch;
  batch.loss_mask = batch.loss_mask.mul(batch.labels.ne(ignore_index));
  for (const auto& [name, field] : fields)
    if (const auto numbers = batch.token_fields.find(field); numbers.defined())
      check_value_data(path, name, numbers_of<double>(numbers), numbers_of<float>(batch.loss_mask));
  return file;
}

}  // namespace mgfl::program

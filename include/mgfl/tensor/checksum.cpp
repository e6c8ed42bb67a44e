#include "mgfl/tensor/checksum.hpp"

#include "mgfl/base/xxh64.hpp"
#include "mgfl/tensor/lean.hpp"

namespace mgfl {

std::uint64_t checksum(const Tensor& values) {
  const auto host = values.detach().to(at::kCPU).contiguous();
  Xxh64 hash;
  hash.update(host.const_data_ptr(), host.nbytes());
  return hash.digest();
}

}  // namespace mgfl

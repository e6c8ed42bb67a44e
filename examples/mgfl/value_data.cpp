#include "examples/mgfl/value_data.hpp"

#include <cmath>

#include "mgfl/base/error.hpp"

namespace mgfl::program {

void check_value_data(const std::string& where, const char* name, std::span<const double> numbers,
                      std::span<const float> loss_mask) {
  for (std::size_t t = 0; t < loss_mask.size(); ++t) {
    check_user(loss_mask[t] == 0 || loss_mask[t] == 1, where, ": loss_mask is ", loss_mask[t],
               " at position ", t, "; a value head counts a position or does not, so it must be 1 or 0.");
    check_user(loss_mask[t] == 0 || std::isfinite(static_cast<float>(numbers[t])), where, ": ", name, " is ",
               numbers[t], " at position ", t,
               ", which counts in the loss; it must be a finite number within fp32's range.");
  }
}

}  // namespace mgfl::program

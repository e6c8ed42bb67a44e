/// What a value head learns from: numbers beside the tokens, checked.
#pragma once

#include <span>
#include <string>

namespace mgfl::program {

/// UserError, naming `where` and `name`, unless loss_mask is 0 or 1 everywhere and the numbers are finite in
/// fp32 wherever it is 1.
void check_value_data(const std::string& where, const char* name, std::span<const double> numbers,
                      std::span<const float> loss_mask);

}  // namespace mgfl::program

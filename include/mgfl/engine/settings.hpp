/// A text of the settings that all ranks of a job must have alike.
#pragma once

#include <string>

#include "mgfl/engine/config.hpp"
#include "mgfl/policy/optimizer_policy.hpp"

namespace mgfl {

/// Differs where a setting does that changes weights, or the collectives of a step.
std::string settings_text(const EngineConfig& engine, const optimizer::OptimizerConfig& optimizer);

}  // namespace mgfl

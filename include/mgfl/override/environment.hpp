/// Refuses to run where MG_FL_PREFER in the environment names another vendor than the one this program was
/// built for.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mgfl {

/// The sentence that tells how `value` (of MG_FL_PREFER) contradicts this build; empty when it does not.
/// Spaces around the value and its case do not matter; an empty value contradicts nothing.
std::string preference_conflict(std::string_view value);

/// The same for any build: the vendor it was built for, and the vendors it knows.
std::string preference_conflict(std::string_view value, std::string_view built_for,
                                std::span<const std::string_view> known);

/// Checks MG_FL_PREFER of this process; call it before anything else. Throws UserError on a conflict; where
/// MG_FL_PREFER_CONFLICT=warn, prints it to stderr once a process instead, on rank 0 only.
void check_environment(int rank = 0);

}  // namespace mgfl

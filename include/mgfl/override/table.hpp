/// What this build overrides, as plain data: one row a target.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mgfl/override/target.hpp"

namespace mgfl {

/// One target. The texts live as long as the program.
struct override_row {
  std::string_view path;  // "mgfl.core.optimizer.clip_grads.get_grad_norm_fp32"
  std::string_view key;   // "clip_grads.get_grad_norm_fp32"
  target_kind kind;
  std::string_view vendor;             // whose body runs: a vendor, a kernel set, or "original"
  std::vector<std::string_view> also;  // others that offer it, known but not active
};

/// All targets, in the order of `all_targets`.
std::vector<override_row> override_rows();

/// The start of every run, in one line: "vendor 'musa', kernels 'x86': 19 of 20 targets overridden (musa 1,
/// default 2, x86 16)", the counts in the order of the chain.
std::string override_summary();

/// Equal for two builds that know the same targets, ask the same vendors in the same order, and have the same
/// manifests, files and kernel options for these. What ranks compare before they work together.
std::uint64_t override_hash();

/// The table for people: a line about the build, then a line a target.
std::string override_report();

/// The table for programs: {"vendor", "known_vendors", "kernels", "known_kernels", "targets": [{"path",
/// "key", "kind", "vendor", "also"}]}.
std::string override_report_json();

}  // namespace mgfl

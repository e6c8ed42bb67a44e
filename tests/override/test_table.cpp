#include "tests/support/doctest.hpp"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "mgfl/base/error.hpp"
#include "mgfl/override/dispatch.hpp"
#include "mgfl/override/table.hpp"

namespace {

const mgfl::override_row& find(const std::vector<mgfl::override_row>& rows, std::string_view key) {
  const auto row = std::ranges::find(rows, key, &mgfl::override_row::key);
  REQUIRE(row != rows.end());
  return *row;
}

bool offers(const mgfl::override_row& row, std::string_view vendor) {
  return row.vendor == vendor || std::ranges::find(row.also, vendor) != row.also.end();
}

}  // namespace

TEST_CASE("method keys are the last two segments") {
  static_assert(mgfl::method_key("mgfl.core.optimizer.clip_grads.get_grad_norm_fp32") ==
                "clip_grads.get_grad_norm_fp32");
  static_assert(mgfl::method_key("a.b.MixedPrecisionOptimizer._unscale") ==
                "MixedPrecisionOptimizer._unscale");
  static_assert(mgfl::method_key("lr_scheduler.CosineAnnealingLR") == "lr_scheduler.CosineAnnealingLR");
}

TEST_CASE("the table has one row a target, with distinct paths and keys") {
  const auto rows = mgfl::override_rows();
  CHECK(rows.size() == mgfl::all_targets::size);
  std::set<std::string_view> paths, keys;
  for (const auto& row : rows) {
    CHECK(paths.insert(row.path).second);
    CHECK(keys.insert(row.key).second);
    CHECK(row.path.ends_with(row.key));
    CHECK(std::ranges::find(row.also, row.vendor) == row.also.end());
    CHECK(std::ranges::find(row.also, "original") == row.also.end());
  }
}

TEST_CASE("rows tell kind, active vendor and other offers") {
  const auto rows = mgfl::override_rows();
  const auto& norm = find(rows, "clip_grads.get_grad_norm_fp32");
  CHECK(norm.path == "mgfl.core.optimizer.clip_grads.get_grad_norm_fp32");
  CHECK(norm.kind == mgfl::target_kind::function);
  CHECK(offers(norm, "default"));
  CHECK(offers(norm, "musa"));
  const auto& unscale = find(rows, "MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan");
  CHECK(unscale.kind == mgfl::target_kind::method);
  CHECK(offers(unscale, "default"));
  CHECK(!offers(unscale, "musa"));
  const auto& embedding = find(rows, "finalize_model_grads._allreduce_embedding_grad");
  CHECK(embedding.kind == mgfl::target_kind::function);
  CHECK(offers(embedding, "default"));
  CHECK(find(rows, "lr_scheduler.CosineAnnealingLR").kind == mgfl::target_kind::class_);
  CHECK(find(rows, "random.CudaRNGStatesTracker").kind == mgfl::target_kind::class_);
  const auto& column_parallel = find(rows, "ColumnParallelLinear.forward");
  CHECK(column_parallel.kind == mgfl::target_kind::method);
  CHECK(offers(column_parallel, "kunlunxin"));
  if constexpr (std::is_same_v<mgfl::vendors::preferred, mgfl::vendors::default_>) {
    CHECK(norm.vendor == "default");
    CHECK(norm.also.front() == "musa");
  }
  if constexpr (std::is_same_v<mgfl::vendors::preferred, mgfl::vendors::musa>) {
    CHECK(norm.vendor == "musa");
    CHECK(unscale.vendor == "default");
  }
}

TEST_CASE("the report has a line for the build and a line a target") {
  const std::string report = mgfl::override_report();
  CHECK(report.starts_with(std::string("mgfl: built for vendor '") +
                           std::string(mgfl::vendors::preferred::name) + "' (known: default, "));
  CHECK(static_cast<std::size_t>(std::ranges::count(report, '\n')) == mgfl::all_targets::size + 1);
  for (const auto& row : mgfl::override_rows())
    CHECK(report.find(std::string("\n  ") + std::string(row.key) + " ") != std::string::npos);
  CHECK(report.find(" \n") == std::string::npos);
}

TEST_CASE("the JSON report says what the rows say") {
  const auto json = nlohmann::json::parse(mgfl::override_report_json());
  const auto rows = mgfl::override_rows();
  CHECK(json["vendor"] == mgfl::vendors::preferred::name);
  CHECK(json["known_vendors"][0] == "default");
  CHECK(json["known_kernels"][0] == "aten");
  REQUIRE(json["targets"].size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(json["targets"][i]["path"] == rows[i].path);
    CHECK(json["targets"][i]["key"] == rows[i].key);
    CHECK(json["targets"][i]["kind"] == mgfl::to_string(rows[i].kind));
    CHECK(json["targets"][i]["vendor"] == rows[i].vendor);
    CHECK(json["targets"][i]["also"].size() == rows[i].also.size());
  }
}

TEST_CASE("the summary counts what the rows say, the original's left out") {
  const auto rows = mgfl::override_rows();
  const auto overridden =
      std::ranges::count_if(rows, [](const auto& row) { return row.vendor != "original"; });
  const std::string summary = mgfl::override_summary();
  CAPTURE(summary);
  CHECK(summary.starts_with(mgfl::concat("vendor '", mgfl::vendors::preferred::name, "', kernels '")));
  CHECK(summary.find(mgfl::concat("': ", overridden, " of ", rows.size(), " targets overridden")) !=
        std::string::npos);
  const auto defaults = std::ranges::count(rows, std::string_view("default"), &mgfl::override_row::vendor);
  CHECK(summary.find(mgfl::concat("default ", defaults)) != std::string::npos);
  CHECK(mgfl::override_hash() != 0);
}

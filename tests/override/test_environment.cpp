#include "tests/support/doctest.hpp"

#include <array>
#include <cstdlib>
#include <string>

#include "mgfl/base/error.hpp"
#include "mgfl/override/dispatch.hpp"
#include "mgfl/override/environment.hpp"

using mgfl::preference_conflict;

namespace {
constexpr std::array<std::string_view, 3> known = {"default", "musa", "npu"};
}

TEST_CASE("an empty or equal preference is no conflict, whatever its case and blanks") {
  CHECK(preference_conflict("", "musa", known) == "");
  CHECK(preference_conflict(" \t\n", "musa", known) == "");
  CHECK(preference_conflict("musa", "musa", known) == "");
  CHECK(preference_conflict("  MuSa\n", "musa", known) == "");
  CHECK(preference_conflict("default", "default", known) == "");
  CHECK(preference_conflict(mgfl::vendors::preferred::name) == "");
}

TEST_CASE("another preference is told with both names and the remedy") {
  CHECK(preference_conflict(" NPU ", "musa", known) ==
        "MG_FL_PREFER='npu' in the environment, but this program was built for vendor 'musa'.\n"
        "  The vendor is chosen at compile time; the variable cannot change it.\n"
        "  Known to this build: default, musa, npu\n"
        "  Rebuild with  cmake -B build -DMG_FL_PREFER=npu  or unset MG_FL_PREFER.");
  const std::string unknown = preference_conflict("nonsense", "musa", known);
  CHECK(unknown.find("No vendor of that name is known") != std::string::npos);
  CHECK(unknown.find("-DMGFL_VENDOR_DIRS=/path/to/nonsense") != std::string::npos);
  CHECK(preference_conflict("mus", "musa", known) != "");  // no prefix matching
  CHECK(preference_conflict("original").find("built for vendor '") != std::string::npos);
}

TEST_CASE("check_environment throws, and MG_FL_PREFER_CONFLICT=warn downgrades") {
  const char* before = std::getenv("MG_FL_PREFER");
  const std::string kept = before ? before : "";
  unsetenv("MG_FL_PREFER_CONFLICT");
  setenv("MG_FL_PREFER", "nonsense", 1);
  CHECK_THROWS_AS(mgfl::check_environment(), mgfl::UserError);
  setenv("MG_FL_PREFER_CONFLICT", "ignore", 1);
  CHECK_THROWS_AS(mgfl::check_environment(), mgfl::UserError);
  setenv("MG_FL_PREFER_CONFLICT", " Warn ", 1);
  CHECK_NOTHROW(mgfl::check_environment());
  unsetenv("MG_FL_PREFER_CONFLICT");
  setenv("MG_FL_PREFER", "", 1);
  CHECK_NOTHROW(mgfl::check_environment());
  unsetenv("MG_FL_PREFER");
  CHECK_NOTHROW(mgfl::check_environment());
  if (before) setenv("MG_FL_PREFER", kept.c_str(), 1);
}

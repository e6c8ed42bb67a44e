#include "tests/support/doctest.hpp"

#include <cmath>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"

TEST_CASE("errors carry the values") {
  CHECK(mgfl::concat("a", 1, " b") == "a1 b");
  CHECK(mgfl::concat(0.1, " ", 1e-5, " ", 100000.0, " ", 4294967296.0) == "0.1 1e-05 100000 4294967296");
  CHECK(mgfl::concat(1.0000000000000002) == "1.0000000000000002");  // as many digits as it takes
  CHECK(mgfl::concat(-0.0, " ", INFINITY, " ", NAN) == "-0 inf nan");
  CHECK(mgfl::join(std::vector<int>{2, 3}) == "2, 3");
  CHECK_THROWS_AS(mgfl::check_user(false, "x"), mgfl::UserError);
  CHECK_NOTHROW(mgfl::check_run(true, "x"));
}

TEST_CASE("matrices multiply") {
  auto a = mgfl::zeros({2, 3}, at::kFloat).add(1.5), b = mgfl::zeros({3, 2}, at::kFloat).add(2.0);
  auto c = mgfl::empty({2, 2}, at::kFloat);
  mgfl::mm_out(a, b, c);
  CHECK(c[0][0].item<float>() == 9.0f);
}

// What a borrowed callable may be.
#include <string>

#include "mgfl/base/function_ref.hpp"
#include "tests/support/doctest.hpp"

using mgfl::function_ref;

namespace {

int twice(int value) { return 2 * value; }

struct Counter {
  int calls = 0;
  int operator()(int value) { return value + ++calls; }
};

int at_three(function_ref<int(int)> callable) { return callable(3); }

}  // namespace

TEST_CASE("a function, a pointer to one, a lambda and an object with state are called as they are") {
  CHECK(at_three(twice) == 6);
  CHECK(at_three(&twice) == 6);
  const int offset = 10;
  CHECK(at_three([&](int value) { return value + offset; }) == 13);
  Counter counter;
  CHECK(at_three(counter) == 4);
  CHECK(at_three(counter) == 5);
  CHECK(counter.calls == 2);
}

TEST_CASE("arguments and results go through as their types say") {
  std::string text = "a";
  const auto append = [](std::string& to, const std::string& what) -> std::string& { return to += what; };
  const function_ref<std::string&(std::string&, const std::string&)> borrowed(append);
  CHECK(&borrowed(text, "b") == &text);
  CHECK(text == "ab");
}

/// Engines that stand for mgfl's own and for others: a template over three policies, told apart by a number.
#pragma once

#include "mgfl/engine/engine_entry.hpp"

namespace mgfl {
namespace engines {
struct mine;
}
struct acme_fast;
}  // namespace mgfl

#include "mgfl/engine/engine_registry.hpp"

namespace mgfl {

struct P {};
struct O {};
struct S {};

template <class P, class O, class S, int Number>
struct Fake {
  static constexpr int number = Number;
  int optimizer_step() { return Number; }
};

struct engines::language_model_megatron {
  template <class P, class O, class S>
  using engine = Fake<P, O, S, 1>;
};
struct engines::mine {
  template <class P, class O, class S>
  using engine = Fake<P, O, S, 2>;
};

}  // namespace mgfl

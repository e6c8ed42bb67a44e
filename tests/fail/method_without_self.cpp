// An original that declares itself a method of a class and does not take that class first.
// expected-error: mgfl: a method's call() takes its class first
#include "mgfl/override/dispatch.hpp"

namespace mgfl {
struct Optimizer {};
template <>
struct implementation<targets::unscale_main_grads, vendors::original> {
  using self = Optimizer;
#ifdef MGFL_TWIN
  static bool call(Optimizer& self);
#else
  static bool call(double scale);
#endif
};
inline constexpr auto body = dispatch<targets::unscale_main_grads>;
}  // namespace mgfl

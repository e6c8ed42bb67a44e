// The one definition that every program of this build, and no other, links against.
#include "mgfl/override/dispatch.hpp"

namespace mgfl::detail {

template <class Preferred, class KernelSet, class... Overrides>
void program_and_libmgfl_were_built_for_different_vendors() {}

template <class>
struct define;
template <class... Vs>
struct define<list<Vs...>> {
  static inline void (*const volatile definition)() = link_check<list<Vs...>>::build;
};
template struct define<vendors::chain>;

}  // namespace mgfl::detail

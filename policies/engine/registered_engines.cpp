// Proves that every registered engine is there, so that a vendor's mistake is told when the library is built.
#include "policies/engine/registered_engines.hpp"

namespace mgfl {
static_assert(detail::all_seen<core_engines> && detail::all_seen<vendor_engines>);
}  // namespace mgfl

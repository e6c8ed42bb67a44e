// Proves that every vendor's engine is there, so that a vendor's mistake is told when the library is built.
#include "policies/engine/registered_engines.hpp"

namespace mgfl {
static_assert(detail::all_seen<vendor_engines>);
}  // namespace mgfl

// A vendor's engine that its manifest does not register: nobody could choose it.
// expected-error: mgfl: V has this engine, but vendors/<V>/manifest.hpp does not register it
// only-error
#ifdef MGFL_TWIN
#define MGFL_TEST_ENGINES engine_entry<"language_model", "megatron", acme_fast>
#endif
#include "scenes/engine.hpp"

namespace mgfl {
struct acme_fast : vendor_engine<acme_fast, vendors::acme> {
  template <class P, class O, class S>
  using engine = Fake<P, O, S, 3>;
};
}  // namespace mgfl

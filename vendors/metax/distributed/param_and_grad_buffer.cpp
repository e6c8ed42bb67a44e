#include "vendors/metax/distributed/param_and_grad_buffer.hpp"

#include <c10/core/Stream.h>

namespace mgfl {

c10::Stream implementation<targets::get_communication_stream, vendors::metax>::call(
    const distributed::CommunicationStreams& streams) {
  return streams.capturing ? streams.current : streams.own;
}

}  // namespace mgfl

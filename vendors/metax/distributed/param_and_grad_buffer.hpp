/// The stream of a communication on MetaX chips, whose torch is built on CUDA's interface.
/// Python: plugin, param_and_grad_buffer._get_communication_stream (metax)
#pragma once

#include "policies/distributed/param_and_grad_buffer_decl.hpp"
#include "vendors/metax/manifest.hpp"

namespace mgfl {

/// The caller's current stream while a MACA graph of it is captured: a graph cannot hold another stream's
/// work there. Else the group's own.
template <>
struct implementation<targets::get_communication_stream, vendors::metax>
    : overrides<targets::get_communication_stream, vendors::metax> {
  static c10::Stream call(const distributed::CommunicationStreams& streams);
};

}  // namespace mgfl

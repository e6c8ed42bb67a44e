// A communicator that says the device of its collectives, but not by a const member.
// expected-error: mgfl: a communicator's device_type_for_comm() must be const and return a c10::DeviceType
#include "mgfl/parallel/communicator_archetype.hpp"

struct Group : mgfl::parallel::communicator_archetype {
#ifdef MGFL_TWIN
  c10::DeviceType device_type_for_comm() const;
#else
  c10::DeviceType device_type_for_comm();
#endif
};

c10::DeviceType ask(Group& group, c10::DeviceType otherwise) {
  return mgfl::parallel::get_device_type_for_comm(group, otherwise);
}

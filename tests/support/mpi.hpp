/// The MPI session of a test program that mpi_main.cpp runs.
#pragma once

#include "policies/parallel/launcher.hpp"

namespace mgfl_test {

/// Valid while the tests run; its time-out is 30 s.
const mgfl::parallel::MpiSession& session();

}  // namespace mgfl_test

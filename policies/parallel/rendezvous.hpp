/// How processes that torchrun started meet before they can use their GPUs' network: its environment
/// variables, and TCP connections to rank 0.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mgfl::parallel {

/// A process's place among those that torchrun, or anyone who sets the same variables, started.
struct TorchrunPlace {
  int rank = 0, size = 1, local_rank = 0;
  std::string address;    // of rank 0's machine
  int port = 0;           // where rank 0 listens
  std::uint64_t job = 0;  // tells jobs apart that meet at one port by mistake
};

/// Whether the variables RANK and WORLD_SIZE are there.
bool launched_by_torchrun();

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. Where torchrun itself listens at MASTER_PORT
/// (TORCHELASTIC_USE_AGENT_STORE), the ranks meet one port higher; MGFL_RENDEZVOUS_PORT says another one.
/// UserError names the variable that is missing or malformed.
TorchrunPlace torchrun_place();

/// The connections of all ranks with rank 0, for as long as the job runs: so that a rank that leaves early is
/// noticed.
class Rendezvous {
 public:
  /// Collective. RunError names who did not come within `timeout_seconds`; UserError for ranks that do not
  /// fit together, and for a port that another program has.
  Rendezvous(const TorchrunPlace& place, double timeout_seconds);
  /// Says goodbye, unless an exception ends this rank's work.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Every rank gets the bytes of rank 0; as many on each. Collective; not beside departed().
  void broadcast(std::span<std::byte> bytes);

  /// Lets all know that this rank ends the job and has told the user why, so that nobody else does.
  void announce_end();

  struct Departure {
    int rank;
    bool told;  // the user knows
  };
  /// A rank whose connection ended without a goodbye; rank 0 sees all, and lets the others know. Returns at
  /// once.
  std::optional<Departure> departed();

 private:
  using Clock = std::chrono::steady_clock;

  void listen_for_others(Clock::time_point deadline);
  void connect_to_first(Clock::time_point deadline);
  void close_all();

  TorchrunPlace place_;
  double timeout_seconds_;
  int exceptions_;
  std::vector<int> sockets_;  // to each rank, on rank 0; on others to rank 0 alone; -1 where there is none
};

}  // namespace mgfl::parallel

/// What an MPI session and its communicators share: who is where, what every rank is doing, and how the job
/// ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mgfl/base/function_ref.hpp"
#include "policies/parallel/collective.hpp"

namespace mgfl::parallel::detail {

/// What one rank is doing on one communicator. Lies in memory that the ranks of a machine share.
struct alignas(64) Slot {
  static constexpr int max_name = 24;
  std::atomic<std::int64_t> number;     // collective operations entered so far
  std::atomic<std::int64_t> transfers;  // other calls entered so far: send, recv, exchange
  std::atomic<std::int64_t> steps;      // meetings in shared memory reached so far, over all its groups
  std::atomic<std::int64_t> heartbeat;  // monotonic ns at which the rank last looked for messages
  std::atomic<std::int64_t> elements;
  std::atomic<std::int32_t> operation;
  std::atomic<std::int32_t> dtype;
  std::atomic<std::int32_t> peer;    // world rank at the other end of a send or recv, otherwise -1
  std::atomic<std::int32_t> inside;  // 1 while the operation runs
  char name[max_name];               // the communicator's, ends with 0
};

/// One rank's row of the board: slot 0 is the session's, the others belong to communicators.
struct Row {
  static constexpr int max_slots = 64;
  std::atomic<std::int64_t> process;
  std::atomic<std::int32_t> reported;  // on local rank 0: someone has told the user why the job ends
  Slot slots[max_slots];
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<std::int32_t>::is_always_lock_free);

/// Memory of a rank beside its row, of which other ranks of the machine read its part in a collective.
inline constexpr std::int64_t stage_bytes = 1 << 20;

/// The members of a group: slots[i] is the slot of world rank ranks[i], and its steps began at steps[i].
struct Members {
  std::vector<int> ranks, slots;
  std::vector<std::int64_t> steps;
  int own = 0;  // index of this rank
};

/// The job as this rank sees it. MPI handles are kept in their Fortran form, which is an int in every MPI.
class MpiJob {
 public:
  /// Collective over all ranks of an initialised MPI.
  explicit MpiJob(double timeout_seconds);
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  /// Frees what the job holds. Collective; call when every rank has reached its end.
  void close();

  /// Ends MPI, after close(). Collective.
  void finalize();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  int guard() const { return guard_; }
  bool closed() const { return closed_; }
  double timeout_seconds = 600;

  /// The row of a rank of the job; null where it runs on another machine.
  Row* row(int world_rank) const { return rows_[world_rank]; }
  /// All ranks, with the session's slots.
  Members all_ranks() const;
  /// The stage of a rank of this machine.
  std::byte* stage(int world_rank) const;
  Slot& slot(int index) const { return rows_[rank_]->slots[index]; }

  /// A free slot of this rank for a communicator of this name; the last one is shared once all are taken.
  int take_slot(std::string_view name);
  void give_slot(int index);

  /// Says the sentence unless another rank of this machine has said why the job ends, then ends every rank.
  [[noreturn]] void end(int status, const std::string& sentence) const;

 private:
  void speak_once(const std::string& sentence) const;
  void start_in_time(const char* call, function_ref<int()> make) const;
  std::string in_vain(std::string_view where) const;

  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  int guard_ = 0, node_ = 0, window_ = 0;
  bool closed_ = false;
  std::vector<Row*> rows_;  // none while the job starts and ends
  std::vector<bool> taken_;
};

/// Marks a slot as inside an operation, for its lifetime.
class Entered {
 public:
  Entered(Slot& slot, Operation operation, std::int64_t elements, std::int32_t dtype, int peer = -1);
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  Slot& slot_;
};

/// Calls `done` until it is true: spins briefly, then yields, then sleeps. False once `seconds` have passed;
/// time during which this process was itself stopped does not count.
bool wait_until(function_ref<bool()> done, double seconds, Slot& slot);

/// Waits so for `count` MPI_Requests.
bool wait_all(void* requests, int count, double seconds, Slot& slot);

/// For a call that waits for other ranks, and knows no deadline: where it has not returned after `seconds`, a
/// thread calls `late`, which must end the job. Time during which this process was itself stopped does not
/// count. `slot`, where there is one, shows others meanwhile that this rank lives.
void call_in_time(function_ref<void()> call, double seconds, Slot* slot, function_ref<void()> late);

/// Why a wait in a collective was in vain: the world ranks that did not arrive or stopped answering, what
/// they are doing, and what the others do.
std::string describe_absent(const MpiJob& job, const Members& members);

/// The same for a wait for the members with the indices `peers`.
std::string describe_peers(const MpiJob& job, const Members& members, const std::vector<int>& peers);

/// Throws RunError with MPI's own text unless `status` is MPI_SUCCESS.
void check_mpi(int status, std::string_view call);

/// Writes one line to stderr in one piece.
void say(const std::string& line);

/// Ends all ranks with MPI_Abort; if that does not return in seconds, ends this process.
[[noreturn]] void end_at_once(int status);

}  // namespace mgfl::parallel::detail

/// The life of a process in an MPI job: whether there is one, its start and end, its threads, and one message
/// when it fails.
#pragma once

#include <memory>

#include "mgfl/base/function_ref.hpp"

namespace mgfl::parallel {

namespace detail {
class MpiJob;
}

/// Whether a launcher (mpirun, mpiexec, srun) started this process as a rank of an MPI job. Only then create
/// an MpiSession.
bool launched_by_mpi();

/// Owns MPI for its lifetime. From its start on, an uncaught exception and a call of exit() end the whole job
/// with a message that names this rank. Its destructor waits for the other ranks, then finalises MPI; during
/// an exception it ends the job.
class MpiSession {
 public:
  /// Collective over all ranks. Throws UserError for a time-out that is not positive, and where the launcher
  /// belongs to another MPI than the one linked; RunError where MPI cannot be called from one thread of
  /// several.
  explicit MpiSession(double timeout_seconds = 600);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this machine
  int local_size() const;

  /// The longest time that any wait may take, for communicators made from now on.
  double timeout_seconds() const;
  void set_timeout(double seconds);

  const std::shared_ptr<detail::MpiJob>& job() const { return job_; }

 private:
  std::shared_ptr<detail::MpiJob> job_;
  bool initialised_here_ = false;
  int exceptions_ = 0;
  void (*previous_terminate_)() = nullptr;
};

/// Runs `body` in a process of its own. Returns its status, or 1 after a UserError and 2 after any other
/// exception, whose sentence it prints to stderr.
int run_guarded(function_ref<int()> body);

/// Runs `body` on every rank of the job and returns only when all ranks have ended theirs: 0 if all
/// succeeded, otherwise the largest status on every rank. Each sentence is printed once, by the lowest rank
/// that failed with it. Where only some ranks fail while others wait, says which and ends the job within
/// seconds.
int run_guarded(MpiSession& session, function_ref<int()> body);

/// The number of threads that one rank should use when the user does not say: its share of the machine's
/// cores.
int default_threads(const MpiSession* session = nullptr);

/// Lets one operation use `requested` threads (0: default_threads) and returns their number. Where the
/// launcher bound this process to fewer CPUs, widens that and says so once a machine. Call it before the
/// first parallel region.
int set_threads(int requested, const MpiSession* session = nullptr);

}  // namespace mgfl::parallel

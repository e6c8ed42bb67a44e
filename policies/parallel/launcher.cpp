#include "policies/parallel/launcher.hpp"

#include <c10/util/Exception.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/parallel/mpi_job.hpp"

namespace mgfl::parallel {

namespace {

// A rank that failed gives the others this long to fail likewise before it ends the job; well below the
// time-out, so that no other rank's complaint about waiting comes before the cause.
double grace_seconds(const detail::MpiJob& job) { return std::min(3.0, job.timeout_seconds / 4); }

// The world size that the launcher announced; 0 where it announced none.
int announced_size() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return 0;
}

bool mpi_is_running() {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised && !finalised;
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

struct Failure {
  int status = 0;
  std::string sentence;
};

Failure describe(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const UserError& error) {
    return {1, error.what()};
  } catch (const c10::Error& error) {
    // what() would add a stack trace.
    return {2, error.what_without_backtrace()};
  } catch (const std::bad_alloc&) {
    return {
        2,
        "this process is out of memory; use a smaller micro-batch or model, or fewer ranks on this machine."};
  } catch (const std::exception& error) {
    return {2, error.what()};
  } catch (...) {
    return {2, "an exception of an unknown type was thrown."};
  }
}

[[noreturn]] void terminate_job() {
  std::string sentence = "it called std::terminate.";
  if (const auto exception = std::current_exception()) sentence = describe(exception).sentence;
  if (!mpi_is_running()) {
    detail::say(concat("mgfl: ", sentence));
    std::abort();
  }
  detail::say(concat("mgfl: rank ", world_rank(), " ended by an uncaught exception: ", sentence));
  detail::end_at_once(2);
}

void end_job_at_exit() {
  if (!mpi_is_running()) return;
  detail::say(
      concat("mgfl: rank ", world_rank(), " called exit() before the end of the job; all ranks end."));
  detail::end_at_once(2);
}

struct Ending {
  std::int32_t status = 0;
  std::int32_t failed = 0;
  std::uint64_t sentence = 0;  // hash
};

// Every rank's ending, or nothing if some rank did not come within `seconds`.
std::vector<Ending> exchange_endings(detail::MpiJob& job, const Ending& own, double seconds) {
  std::vector<Ending> all(static_cast<std::size_t>(job.size()));
  const detail::Entered entered(job.slot(0), detail::Operation::end_of_job, 0, -1);
  MPI_Request request;
  detail::check_mpi(MPI_Iallgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE,
                                   MPI_Comm_f2c(job.guard()), &request),
                    "MPI_Iallgather");
  if (detail::wait_all(&request, 1, seconds, job.slot(0))) return all;
  return {};
}

// Waits until every rank has come to its end.
[[noreturn]] void end_for_absent(detail::MpiJob& job) {
  job.end(2, concat("mgfl: rank ", job.rank(), " had ended its work and waited ", job.timeout_seconds,
                    " s in ", detail::describe_absent(job, job.all_ranks()), "."));
}

void check_timeout(double seconds) {
  check_user(seconds > 0 && seconds < 1e9, "the time-out of ", seconds,
             " s is not usable; give a positive number of seconds.");
}

}  // namespace

bool launched_by_mpi() {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (std::getenv(name)) return true;
  return false;
}

MpiSession::MpiSession(double timeout_seconds) : exceptions_(std::uncaught_exceptions()) {
  check_timeout(timeout_seconds);
  int running = 0;
  MPI_Initialized(&running);
  if (!running) {
    int provided = MPI_THREAD_SINGLE;
    detail::check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    check_run(provided >= MPI_THREAD_FUNNELED,
              "this MPI cannot be used by a process with threads; install one with ", "MPI_THREAD_FUNNELED.");
    initialised_here_ = true;
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (const int announced = announced_size(); announced > 0 && announced != size) {
      MPI_Finalize();
      throw UserError(concat("the launcher started ", announced, " ranks, but MPI sees ", size,
                             "; use the mpirun of the MPI that mgfl was built with."));
    }
  }
  job_ = std::make_shared<detail::MpiJob>(timeout_seconds);
  previous_terminate_ = std::set_terminate(terminate_job);
  std::atexit(end_job_at_exit);
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_)
    job_->end(2, concat("mgfl: rank ", rank(), " left the job by an exception; all ranks end."));
  if (!job_->closed()) {
    if (exchange_endings(*job_, Ending{}, job_->timeout_seconds).empty()) end_for_absent(*job_);
    job_->close();
  }
  std::set_terminate(previous_terminate_);
  if (initialised_here_) job_->finalize();
}

int MpiSession::rank() const { return job_->rank(); }
int MpiSession::size() const { return job_->size(); }
int MpiSession::local_rank() const { return job_->local_rank(); }
int MpiSession::local_size() const { return job_->local_size(); }
double MpiSession::timeout_seconds() const { return job_->timeout_seconds; }

void MpiSession::set_timeout(double seconds) {
  check_timeout(seconds);
  job_->timeout_seconds = seconds;
}

int run_guarded(function_ref<int()> body) {
  try {
    return body();
  } catch (...) {
    const Failure failure = describe(std::current_exception());
    detail::say(concat("mgfl: ", failure.sentence));
    return failure.status;
  }
}

int run_guarded(MpiSession& session, function_ref<int()> body) {
  detail::MpiJob& job = *session.job();
  Failure failure;
  try {
    failure.status = body();
  } catch (...) {
    failure = describe(std::current_exception());
  }
  const Ending own{failure.status, failure.status != 0, std::hash<std::string>{}(failure.sentence)};
  const auto endings = exchange_endings(job, own, own.failed ? grace_seconds(job) : job.timeout_seconds);
  if (endings.empty()) {
    if (!own.failed) end_for_absent(job);
    const std::string sentence =
        failure.sentence.empty() ? concat("ended with status ", own.status, ".") : failure.sentence;
    job.end(own.status, concat("mgfl: rank ", job.rank(), ": ", sentence));
  }

  std::vector<int> same;
  int status = 0;
  for (int r = 0; r < job.size(); ++r) {
    const Ending& ending = endings[static_cast<std::size_t>(r)];
    if (ending.failed && ending.sentence == own.sentence) same.push_back(r);
    status = std::max(status, static_cast<int>(ending.status));
    // A status below zero is a failure as well.
    if (ending.failed && status <= 0) status = 2;
  }
  if (own.failed && !failure.sentence.empty() && same.front() == job.rank()) {
    const bool everywhere = static_cast<int>(same.size()) == job.size();
    const std::string who = everywhere ? "" : concat(same.size() == 1 ? "rank " : "ranks ", join(same), ": ");
    detail::say(concat("mgfl: ", who, failure.sentence));
  }
  return status;
}

namespace {

cpu_set_t affinity_of(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(process, sizeof set, &set) != 0) CPU_ZERO(&set);
  return set;
}

// The CPUs that this process may be given. A launcher binds its ranks but not itself, so that its own set is
// the user's.
cpu_set_t available_cpus(bool in_job) {
  cpu_set_t set = affinity_of(0);
  const bool binding_launcher = std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("MPI_LOCALNRANKS");
  if (in_job && binding_launcher && !std::getenv("SLURM_STEP_ID")) {
    const cpu_set_t launcher = affinity_of(::getppid());
    CPU_OR(&set, &set, &launcher);
  }
  return set;
}

// Cores, not hardware threads: dense kernels gain nothing from the second thread of a core.
int count_cores(const cpu_set_t& set) {
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    std::string siblings;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    if (!std::getline(file, siblings)) siblings = "cpu " + std::to_string(cpu);
    cores.insert(siblings);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

}  // namespace

int default_threads(const MpiSession* session) {
  const int ranks = session ? session->local_size() : 1;
  return std::max(1, count_cores(available_cpus(session != nullptr)) / ranks);
}

int set_threads(int requested, const MpiSession* session) {
  check_user(requested >= 0 && requested <= CPU_SETSIZE, "--threads ", requested,
             " is not usable; give 1 to ", CPU_SETSIZE, ", or 0 for this rank's share of the cores.");
  const int threads = requested > 0 ? requested : default_threads(session);
  const cpu_set_t own = affinity_of(0);
  if (CPU_COUNT(&own) < threads) {
    const cpu_set_t wide = available_cpus(session != nullptr);
    if (CPU_COUNT(&wide) > CPU_COUNT(&own) && ::sched_setaffinity(0, sizeof wide, &wide) == 0 &&
        (!session || session->local_rank() == 0))
      detail::say(concat("mgfl: the launcher bound each rank to ", CPU_COUNT(&own),
                         " CPU(s), fewer than its ", threads, " threads; it may now use ", CPU_COUNT(&wide),
                         ". Start mpirun with --bind-to none."));
  }
  set_num_threads(threads);
  return threads;
}

}  // namespace mgfl::parallel

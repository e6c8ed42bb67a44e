// A job whose rank 1 fails in the way that the first argument names, among all-reduces or, after "ring_",
// among exchanges around a ring; judge_job.py starts it and judges its end.
#include "mgfl/tensor/lean.hpp"

#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "mgfl/base/error.hpp"
#include "mgfl/tensor/factory.hpp"
#include "policies/parallel/launcher.hpp"
#include "policies/parallel/mpi.hpp"

using mgfl::ReduceOp;
using mgfl::Tensor;
using mgfl::parallel::Mpi;
using mgfl::parallel::Transfer;

// Calls of MPI that know no deadline: after "stop_in_", the first argument names the one in which rank 1
// stops, and in which the others are left.
namespace {

std::string_view stops_in;

void stop_in(std::string_view call) {
  int rank = 0;
  if (call == stops_in) PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 1) std::raise(SIGSTOP);
}

}  // namespace

extern "C" {

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  stop_in("MPI_Comm_dup");
  return PMPI_Comm_dup(comm, made);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  stop_in("MPI_Comm_split_type");
  return PMPI_Comm_split_type(comm, type, key, info, made);
}

int MPI_Win_allocate_shared(MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm comm, void* base,
                            MPI_Win* made) {
  stop_in("MPI_Win_allocate_shared");
  return PMPI_Win_allocate_shared(bytes, unit, info, comm, base, made);
}

int MPI_Allgather(const void* own, int count, MPI_Datatype type, void* all, int count_of_each,
                  MPI_Datatype type_of_each, MPI_Comm comm) {
  stop_in("MPI_Allgather");
  return PMPI_Allgather(own, count, type, all, count_of_each, type_of_each, comm);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  stop_in("MPI_Comm_split");
  return PMPI_Comm_split(comm, color, key, made);
}

int MPI_Win_free(MPI_Win* window) {
  stop_in("MPI_Win_free");
  return PMPI_Win_free(window);
}

int MPI_Finalize() {
  stop_in("MPI_Finalize");
  return PMPI_Finalize();
}

}  // extern "C"

namespace {

void fail() { throw std::runtime_error("thrown where nothing may be"); }

void fail_where_nothing_may() noexcept { fail(); }

/// One tensor to the next rank, one from the previous.
void go_around(Mpi& world, const Tensor& sent, Tensor& received) {
  const Transfer transfers[] = {Transfer::receive(received, (world.rank() + world.size() - 1) % world.size()),
                                Transfer::send(sent, (world.rank() + 1) % world.size())};
  world.exchange(transfers);
}

/// Transfers that find no partner, or another one than expected.
void transfer_wrongly(Mpi& world, const std::string& way) {
  const int rank = world.rank(), next = (rank + 1) % world.size(),
            previous = (rank + world.size() - 1) % world.size();
  Tensor three = mgfl::zeros({3}, at::kFloat), four = mgfl::zeros({4}, at::kFloat),
         large = mgfl::zeros({1 << 20}, at::kFloat);
  if (way == "send_to_nobody") {
    if (rank == 0)
      world.send(three, 1);
    else
      world.barrier();
  }
  if (way == "recv_from_nobody") {
    if (rank == 1)
      world.recv(large, 0);
    else
      world.all_reduce(three, ReduceOp::sum);
  }
  if (way == "all_receive_first") {
    world.recv(three, previous);
    world.send(three, next);
  }
  if (way == "misfit" || way == "misfit_of_dtypes") {
    Tensor ints = mgfl::zeros({3}, at::kLong);
    if (rank == 0) world.send(three, 1);
    if (rank == 1) world.recv(way == "misfit" ? four : ints, 0);
    world.barrier();
  }
  if (way == "one_transfer_less") {
    const Transfer transfers[] = {Transfer::receive(large, previous), Transfer::send(three, next),
                                  Transfer::receive(four, previous), Transfer::send(four, next)};
    Tensor small = mgfl::zeros({3}, at::kFloat);
    const Transfer fitting[] = {Transfer::receive(small, previous), transfers[1], transfers[2], transfers[3]};
    world.exchange(std::span(fitting).first(rank == 1 ? 3 : 4));
  }
}

int steps(const mgfl::parallel::MpiSession& session, std::string way) {
  Mpi world(session);
  transfer_wrongly(world, way);
  const bool ring = way.starts_with("ring_");
  if (ring) way = way.substr(5);
  const bool culprit = world.rank() == 1;
  if (way == "user_error_everywhere")
    throw mgfl::UserError("the file /no/such/model is missing; give an existing folder.");
  if (way == "user_error_first" && culprit) throw mgfl::UserError("rank 1 cannot open its data.");
  if (!stops_in.empty()) world.split(0, 0);
  if (way == "other_errors") throw mgfl::UserError(culprit ? "this is wrong here." : "that is wrong there.");
  Tensor tensor = mgfl::zeros({3}, at::kFloat), large = mgfl::zeros({1 << 24}, at::kFloat),
         received = large.clone();
  // Enough of them after the second that no rank of a ring gets to the end without rank 1.
  for (int step = 1; step <= 6; ++step) {
    if (ring) {
      Tensor incoming = mgfl::zeros({3}, at::kFloat);
      go_around(world, tensor, incoming);
    } else if (way == "other_operation" && step == 3 && culprit) {
      world.barrier();
    } else {
      world.all_reduce(tensor, ReduceOp::sum);
    }
    if (step == 2 && culprit) {
      if (way == "throw") throw std::runtime_error("step 2 went wrong");
      if (way == "terminate") fail_where_nothing_may();
      if (way == "kill") std::raise(SIGKILL);
      if (way == "crash") std::raise(SIGSEGV);
      if (way == "exit") std::exit(0);
      if (way == "quick_exit") ::_exit(0);
      if (way == "return") return 0;
      if (way == "status") return 3;
      if (way == "stop") std::raise(SIGSTOP);
      if (way == "stop_inside" || way == "kill_inside")
        std::thread([signal = way == "stop_inside" ? SIGSTOP : SIGKILL] {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          ::kill(::getpid(), signal);
        }).detach();
      if (way == "other_size") tensor = mgfl::zeros({4}, at::kFloat);
      if (way == "other_dtype") tensor = mgfl::zeros({3}, at::kDouble);
    }
    if (way.ends_with("_inside") && step == 2)
      for (int i = 0; i < 10000; ++i) {
        if (ring)
          go_around(world, large, received);
        else
          world.all_reduce(large, ReduceOp::sum);
      }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  const double timeout = argc > 2 ? std::atof(argv[2]) : 600;
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (way.starts_with("stop_in_")) stops_in = argv[1] + std::string_view("stop_in_").size();
  mgfl::parallel::MpiSession session(timeout);
  if (way == "unguarded")
    return session.rank() == 1 ? throw std::runtime_error("nobody catches this") : steps(session, way);
  const int status = run_guarded(session, [&] { return steps(session, way); });
  if (status == 0 && session.rank() == 0) std::puts("all steps done");
  return status;
}

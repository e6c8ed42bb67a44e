// The mgfl program: reads the command line, joins the job if there is one, and runs one command on every
// rank.
#include <cstdio>
#include <malloc.h>
#include <optional>
#include <string>
#include <variant>

#include "examples/mgfl/commands.hpp"
#include "examples/mgfl/options.hpp"
#include "examples/mgfl/rank.hpp"
#include "mgfl/base/error.hpp"
#include "mgfl/override/environment.hpp"
#include "mgfl/parallel/agreement.hpp"
#include "policies/parallel/launcher.hpp"

namespace mgfl::program {
namespace {

template <class C>
int run(const TrainOptions& options, Rank<C>& rank) {
  return run_train(options, rank);
}
template <class C>
int run(const ScoreOptions& options, Rank<C>& rank) {
  return run_score(options, rank);
}
template <class C>
int run(const GenerateOptions& options, Rank<C>& rank) {
  return run_generate(options, rank);
}
template <class C>
int run(const BenchOptions& options, Rank<C>& rank) {
  return run_bench(options, rank);
}

template <class C>
int run_together(const auto& options, C world, int threads, std::chrono::steady_clock::time_point start) {
  const auto sizes = model_parallel_sizes(options.parallel);
  if constexpr (std::is_same_v<C, parallel::Self>) parallel::check_fits_alone(sizes);
  Rank<C> rank{{std::move(world), sizes}, threads, start};
  return run(options, rank);
}

/// `session` and `world` are there where ranks work together.
template <class Command>
int on_this_rank(const Command& options, std::chrono::steady_clock::time_point start,
                 parallel::MpiSession* session, std::optional<parallel::Mpi> world) {
  const int threads = parallel::set_threads(static_cast<int>(options.runtime.threads.value_or(0)), session);
  if (!world) return run_together(options, parallel::Self(), threads, start);
  return run_together(options, std::move(*world), threads, start);
}

/// The longest wait for another rank; a group has the one that was set when it was made.
void set_timeout(parallel::MpiSession& session, const Options& options) {
  std::visit(
      [&](const auto& command) {
        if constexpr (requires { command.runtime; }) session.set_timeout(command.runtime.timeout_seconds);
      },
      options);
}

int run_command(const Options& options, std::chrono::steady_clock::time_point start,
                parallel::MpiSession* session) {
  check_environment(session ? session->rank() : 0);
  std::optional<parallel::Mpi> world;
  if (session) {
    // The first thing that ranks do together: they make sure that they are one build, and do one thing.
    set_timeout(*session, options);
    world.emplace(*session);
    parallel::check_same_overrides(*world);
    parallel::check_same(*world, described(options), parallel::throw_different_flags);
  }
  return std::visit(
      [&](const auto& command) -> int {
        using Command = std::remove_cvref_t<decltype(command)>;
        const bool first = !session || session->rank() == 0;
        if constexpr (std::is_same_v<Command, EarlyExit>) {
          if (first) std::fputs(command.text.c_str(), stdout);
          return command.exit_status;
        } else if constexpr (std::is_same_v<Command, OverridesOptions>) {
          return first ? run_overrides(command) : 0;
        } else {
          return on_this_rank(command, start, session, std::move(world));
        }
      },
      options);
}

}  // namespace
}  // namespace mgfl::program

int main(int argc, char** argv) {
  using namespace mgfl;
  const auto start = std::chrono::steady_clock::now();
  // Freed memory stays with the process: a step allocates the same sizes again, and fresh pages cost more
  // than they save.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  if (!parallel::launched_by_mpi())
    return parallel::run_guarded(
        [&] { return program::run_command(program::parse(argc, argv), start, nullptr); });
  parallel::MpiSession session;
  return parallel::run_guarded(
      session, [&] { return program::run_command(program::parse(argc, argv), start, &session); });
}

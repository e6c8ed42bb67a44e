// The mgfl program: reads the command line, joins the job if there is one, and runs one command on every
// rank.
#include <cstdio>
#include <cstring>
#include <malloc.h>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "examples/mgfl/commands.hpp"
#include "examples/mgfl/options.hpp"
#include "examples/mgfl/rank.hpp"
#include "mgfl/base/error.hpp"
#include "mgfl/base/hash.hpp"
#include "mgfl/override/environment.hpp"
#include "mgfl/parallel/agreement.hpp"
#include "mgfl/tensor/factory.hpp"
#include "mgfl/tensor/lean.hpp"
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

/// The lines of a text.
std::set<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::set<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

/// UserError on every rank alike, with what differs, unless all were started with the same command and flags
/// (`text`). Collective.
void check_same_flags(parallel::Mpi& world, const std::string& text) {
  const auto hash = static_cast<std::int64_t>(fnv1a(text) >> 1);
  const auto largest = world.all_reduce_value(hash, ReduceOp::max);
  if (world.all_reduce_value(std::int64_t{hash == largest}, ReduceOp::sum) == world.size()) return;
  const auto length = world.all_reduce_value(static_cast<std::int64_t>(text.size()), ReduceOp::max);
  auto own = zeros({length}, at::kByte), all = zeros({world.size(), length}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  world.all_gather(own, all);
  const auto* bytes = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::set<std::string>> ranks;
  std::map<std::string, int> having;  // ranks that have the line
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto* begin = bytes + rank * length;
    ranks.push_back(lines_of({begin, strnlen(begin, static_cast<std::size_t>(length))}));
    for (const auto& line : ranks.back()) ++having[line];
  }
  std::string unlike;
  for (int rank = 0; rank < world.size(); ++rank) {
    unlike += concat("\n  rank ", rank, ":");
    for (const auto& line : ranks[static_cast<std::size_t>(rank)])
      if (having[line] < world.size()) unlike += concat(" ", line, ";");
  }
  throw UserError(concat("the ranks were started with different commands or flags:", unlike,
                         "\n  Give every rank the same command line."));
}

template <class C>
int run_together(const auto& options, C world, int threads, std::chrono::steady_clock::time_point start) {
  const auto sizes = model_parallel_sizes(options.parallel);
  if constexpr (std::is_same_v<C, parallel::Self>) parallel::check_fits_alone(sizes);
  Rank<C> rank{{std::move(world), sizes}, threads, start};
  return run(options, rank);
}

template <class Command>
int on_this_rank(const Command& options, std::chrono::steady_clock::time_point start,
                 parallel::MpiSession* session) {
  const int threads = parallel::set_threads(static_cast<int>(options.runtime.threads.value_or(0)), session);
  if (session) {
    session->set_timeout(options.runtime.timeout_seconds);
    return run_together(options, parallel::Mpi(*session), threads, start);
  }
  return run_together(options, parallel::Self(), threads, start);
}

int run_command(const Options& options, std::chrono::steady_clock::time_point start,
                parallel::MpiSession* session) {
  check_environment(session ? session->rank() : 0);
  if (session) {
    // The first thing that ranks do together: they make sure that they are one build, and do one thing.
    parallel::Mpi world(*session);
    parallel::check_same_overrides(world);
    check_same_flags(world, described(options));
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
          return on_this_rank(command, start, session);
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

/// The original CudaRNGStatesTracker; vendors that replace the class derive from it.
/// Python: megatron/core/tensor_parallel/random.py, CudaRNGStatesTracker
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "mgfl/override/target.hpp"
#include "mgfl/override/targets/tensor_parallel.hpp"
#include "mgfl/tensor/fwd.hpp"

namespace mgfl {

namespace tensor_parallel {

/// Where a random stream is: what it gives next depends on these two numbers alone.
struct RngState {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;  // numbers drawn so far

  friend bool operator==(const RngState&, const RngState&) = default;
};

/// States by the names of their streams.
using RngStates = std::map<std::string, RngState>;

/// Names of the streams that model_parallel_cuda_manual_seed makes.
inline constexpr const char* default_rng = "default";  // equal on all ranks of a model replica
inline constexpr const char* data_parallel_rng = "data-parallel-rng";
inline constexpr const char* model_parallel_rng = "model-parallel-rng";    // one for each tp rank
inline constexpr const char* expert_parallel_rng = "expert-parallel-rng";  // one for each ep and etp rank

namespace original {

/// Random streams of one rank by name, of which one is current: stream "default" outside of forks. Numbers
/// are drawn on the host from counters, so that they are equal on every chip and for every number of threads.
class CudaRNGStatesTracker {
 public:
  /// Makes a stream current from its construction to its end, where the one before is current again. The
  /// stream keeps its new position. The tracker must outlive it.
  class [[nodiscard]] Fork {
   public:
    Fork(const Fork&) = delete;
    Fork& operator=(const Fork&) = delete;
    ~Fork();

   private:
    friend CudaRNGStatesTracker;
    Fork(CudaRNGStatesTracker& tracker, const std::string& name);

    CudaRNGStatesTracker& tracker_;
    std::string before_;
  };

  /// Stream "default" alone, at the start of seed 0.
  CudaRNGStatesTracker() = default;
  CudaRNGStatesTracker(const CudaRNGStatesTracker&) = delete;  // forks name the tracker; see get_states
  CudaRNGStatesTracker& operator=(const CudaRNGStatesTracker&) = delete;

  /// Removes all streams but "default", which goes on where it is.
  void reset();

  /// Whether there is a stream beside "default".
  bool is_initialized() const;

  /// Starts stream "default" anew.
  void manual_seed(std::uint64_t seed);

  /// Adds a stream at its start. UserError where a stream of this name, or another than "default" of this
  /// seed, exists.
  void add(const std::string& name, std::uint64_t seed);

  /// All streams, for a checkpoint: a tracker that is given them goes on bit for bit.
  RngStates get_states() const;
  /// Replaces all streams. UserError where `states` has no "default".
  void set_states(RngStates states);

  /// Inside a fork of the same stream it goes on there. (Megatron's begins again, and gives the same numbers
  /// twice.) UserError where there is no such stream.
  Fork fork(const std::string& name = model_parallel_rng);

  /// Fills `values` with uniform deviates in (0, 1] of the current stream, in row-major order, rounded to its
  /// dtype. UserError where `values` cannot hold such numbers, or the current stream was removed.
  void uniform_(Tensor& values);

  /// Makes `mask` one to multiply with: 0 with probability p, else 1 / (1 - p). UserError unless
  /// 0 <= p <= 1, and as uniform_.
  void dropout_mask_(Tensor& mask, double p);

 private:
  RngStates states_{{default_rng, {}}};
  std::string current_ = default_rng;
};

}  // namespace original
}  // namespace tensor_parallel

template <>
struct implementation<targets::CudaRNGStatesTracker, vendors::original> {
  using type = tensor_parallel::original::CudaRNGStatesTracker;
  using constructor = void();
};

}  // namespace mgfl

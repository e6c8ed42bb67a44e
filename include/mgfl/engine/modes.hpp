/// Train mode and eval mode as guards: what they move to the device comes back when they end.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>

namespace mgfl {

enum class Mode { train, eval };

struct ModeOptions {
  bool disable_auto_offload = false;
  bool zero_grad_on_exit = true;  // of train mode; an exception always zeroes
};

/// Keeps an engine in a mode for its lifetime. Enter moves what the engine's offload flags keep on the host
/// to the device: eval the weights, train gradients and optimizer state as well; exit moves the same back.
/// Mirrors verl's BaseEngineCtx.
template <class Engine>
class ModeGuard {
 public:
  /// UserError where the engine is in a mode already.
  ModeGuard(Engine& engine, Mode mode, const ModeOptions& options)
      : engine_(&engine), mode_(mode), options_(options), exceptions_(std::uncaught_exceptions()) {
    engine.enter(mode, options);
  }
  ~ModeGuard() { engine_->leave(mode_, options_, std::uncaught_exceptions() > exceptions_); }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  Engine* engine_;
  Mode mode_;
  ModeOptions options_;
  int exceptions_;
};

}  // namespace mgfl

/// The shipped engines: data-parallel language models in four precisions, alone or over MPI. Compiled once,
/// in the library.
#pragma once

#include "mgfl/engine/engine.hpp"
#include "policies/bridge/auto_bridge.hpp"
#include "policies/model/decoder.hpp"
#include "policies/optimizer/local.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/parallel/self.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"

namespace mgfl {

/// Language model, AdamW, Megatron's schedule: `LanguageModelEngine<parallel::Mpi,
/// optimizer::Bf16WithFp32Main>`.
template <parallel::Communicator C, optimizer::Precision P>
using LanguageModelEngine =
    MegatronEngineWithLMHead<parallel::DataParallel<C>, optimizer::Local<optimizer::AdamW, P>,
                             scheduler::OptimizerParamScheduler, model::Decoder>;

#define MGFL_LANGUAGE_MODEL_ENGINE(communicator, precision)                       \
  template class Engine<parallel::DataParallel<communicator>,                     \
                        optimizer::Local<optimizer::AdamW, optimizer::precision>, \
                        scheduler::OptimizerParamScheduler, model::Decoder>

extern MGFL_LANGUAGE_MODEL_ENGINE(parallel::Self, Fp64);
extern MGFL_LANGUAGE_MODEL_ENGINE(parallel::Self, Fp32);
extern MGFL_LANGUAGE_MODEL_ENGINE(parallel::Self, Bf16WithFp32Main);
extern MGFL_LANGUAGE_MODEL_ENGINE(parallel::Self, Fp16WithLossScaler);
extern MGFL_LANGUAGE_MODEL_ENGINE(parallel::Mpi, Fp64);
extern MGFL_LANGUAGE_MODEL_ENGINE(parallel::Mpi, Fp32);
extern MGFL_LANGUAGE_MODEL_ENGINE(parallel::Mpi, Bf16WithFp32Main);
extern MGFL_LANGUAGE_MODEL_ENGINE(parallel::Mpi, Fp16WithLossScaler);

}  // namespace mgfl

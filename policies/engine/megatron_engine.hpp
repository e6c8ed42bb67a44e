/// The shipped engines: data-parallel language models and critics in four precisions, alone or over MPI.
/// Compiled once, in the library.
#pragma once

#include "mgfl/engine/engine.hpp"
#include "policies/bridge/auto_bridge.hpp"
#include "policies/checkpoint/training_checkpoint.hpp"
#include "policies/model/decoder.hpp"
#include "policies/model/value_model.hpp"
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
                             scheduler::OptimizerParamScheduler>;

/// The critic of the same make.
template <parallel::Communicator C, optimizer::Precision P>
using ValueModelEngine =
    MegatronEngineWithValueHead<parallel::DataParallel<C>, optimizer::Local<optimizer::AdamW, P>,
                                scheduler::OptimizerParamScheduler>;

#define MGFL_ENGINE(communicator, precision, model)                               \
  template class Engine<parallel::DataParallel<communicator>,                     \
                        optimizer::Local<optimizer::AdamW, optimizer::precision>, \
                        scheduler::OptimizerParamScheduler, model>
#define MGFL_ENGINES(prefix, communicator, model)            \
  prefix MGFL_ENGINE(communicator, Fp64, model);             \
  prefix MGFL_ENGINE(communicator, Fp32, model);             \
  prefix MGFL_ENGINE(communicator, Bf16WithFp32Main, model); \
  prefix MGFL_ENGINE(communicator, Fp16WithLossScaler, model)

MGFL_ENGINES(extern, parallel::Self, model::Decoder);
MGFL_ENGINES(extern, parallel::Mpi, model::Decoder);
MGFL_ENGINES(extern, parallel::Self, model::ValueModel);
MGFL_ENGINES(extern, parallel::Mpi, model::ValueModel);

}  // namespace mgfl

/// The shipped engines: language models and critics in four precisions, alone or over MPI with tensor and
/// data parallelism, there also with the optimizer's state sharded. Compiled once, in the library.
#pragma once

#include <type_traits>

#include "mgfl/engine/engine.hpp"
#include "policies/bridge/auto_bridge.hpp"
#include "policies/checkpoint/training_checkpoint.hpp"
#include "policies/model/decoder.hpp"
#include "policies/model/value_model.hpp"
#include "policies/optimizer/distributed.hpp"
#include "policies/optimizer/local.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/mpi.hpp"
#include "policies/parallel/self.hpp"
#include "policies/scheduler/optimizer_param_scheduler.hpp"

namespace mgfl {

/// The layout of the shipped engines: none for one process, that of the context for several.
template <parallel::Communicator C>
using ShippedLayout = std::conditional_t<std::is_same_v<C, parallel::Self>, parallel::DataParallel<C>,
                                         parallel::TensorAndDataParallel<C>>;

/// Language model, AdamW, Megatron's schedule: `LanguageModelEngine<parallel::Mpi,
/// optimizer::Bf16WithFp32Main>`, and with `optimizer::Distributed` as third argument ZeRO-1.
template <parallel::Communicator C, optimizer::Precision P,
          template <optimizer::FlatOptimizer, optimizer::Precision> class O = optimizer::Local>
using LanguageModelEngine =
    MegatronEngineWithLMHead<ShippedLayout<C>, O<optimizer::AdamW, P>, scheduler::OptimizerParamScheduler>;

/// The critic of the same make.
template <parallel::Communicator C, optimizer::Precision P,
          template <optimizer::FlatOptimizer, optimizer::Precision> class O = optimizer::Local>
using ValueModelEngine =
    MegatronEngineWithValueHead<ShippedLayout<C>, O<optimizer::AdamW, P>, scheduler::OptimizerParamScheduler>;

#define MGFL_ENGINE(communicator, optimizer_policy, precision, model)                        \
  template class Engine<ShippedLayout<communicator>,                                         \
                        optimizer::optimizer_policy<optimizer::AdamW, optimizer::precision>, \
                        scheduler::OptimizerParamScheduler, model>
#define MGFL_ENGINES(prefix, communicator, optimizer_policy, model)            \
  prefix MGFL_ENGINE(communicator, optimizer_policy, Fp64, model);             \
  prefix MGFL_ENGINE(communicator, optimizer_policy, Fp32, model);             \
  prefix MGFL_ENGINE(communicator, optimizer_policy, Bf16WithFp32Main, model); \
  prefix MGFL_ENGINE(communicator, optimizer_policy, Fp16WithLossScaler, model)

MGFL_ENGINES(extern, parallel::Self, Local, model::Decoder);
MGFL_ENGINES(extern, parallel::Mpi, Local, model::Decoder);
MGFL_ENGINES(extern, parallel::Mpi, Distributed, model::Decoder);
MGFL_ENGINES(extern, parallel::Self, Local, model::ValueModel);
MGFL_ENGINES(extern, parallel::Mpi, Local, model::ValueModel);
MGFL_ENGINES(extern, parallel::Mpi, Distributed, model::ValueModel);

}  // namespace mgfl

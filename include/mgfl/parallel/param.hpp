/// One logical parameter and its one description, from which init, gradient reduction, norms, optimizer
/// state, checkpoints and the Hugging Face bridge are derived.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mgfl/tensor/lean.hpp"

namespace mgfl {

/// How one logical parameter lies on the ranks, and what its rows mean.
namespace placement {

struct Replicated {};  // whole on every tensor-parallel rank
struct Column {};      // output rows split over tp
struct Row {};         // input columns split over tp
struct Vocab {};       // vocabulary rows split over tp
struct Qkv {};         // rows per kv group [q x n, k, v], split over tp by group
struct GateUp {};      // rows [gate; up], each half split over tp

}  // namespace placement

enum class PlacementKind { replicated, column, row, vocab, qkv, gate_up };

template <class Placement>
inline constexpr PlacementKind placement_kind = PlacementKind::replicated;
template <>
inline constexpr PlacementKind placement_kind<placement::Column> = PlacementKind::column;
template <>
inline constexpr PlacementKind placement_kind<placement::Row> = PlacementKind::row;
template <>
inline constexpr PlacementKind placement_kind<placement::Vocab> = PlacementKind::vocab;
template <>
inline constexpr PlacementKind placement_kind<placement::Qkv> = PlacementKind::qkv;
template <>
inline constexpr PlacementKind placement_kind<placement::GateUp> = PlacementKind::gate_up;

/// A rank's place in its tensor-parallel group.
struct TensorParallelPlace {
  int rank = 0, size = 1;
};

/// What the rows of a fused QKV parameter are: for each kv group its queries, its key, its value.
struct QkvRows {
  std::int64_t groups = 0, queries_per_group = 0, head_dim = 0;
};

/// Everything about a parameter but its numbers. What of it lies on this rank follows from it, placement.hpp.
struct ParamDesc {
  std::string name;                 // Megatron's, e.g. "decoder.layers.0.self_attention.linear_qkv.weight"
  std::vector<std::int64_t> shape;  // logical: of all ranks together, fused parts included
  PlacementKind placement = PlacementKind::replicated;
  bool weight_decay = false;  // matrices and embeddings, never norms and biases
  double init_std = 0;        // normal(0, init_std); 0: ones for norms, zeros for biases (`init_value`)
  double init_value = 0;
  QkvRows qkv{};             // of placement Qkv
  std::int64_t padding = 0;  // of a vocabulary: rows at the end that no token has
  TensorParallelPlace tp{};  // which part of it this rank holds
  // Each tp rank's gradient covers its own heads or tokens only, though the parameter is whole everywhere.
  bool partial_grad = false;
};

/// A parameter as a module holds it: this rank's part. `value` has the model's dtype, `main_grad` fp32 or
/// fp64; both are views of flat buffers that the engine owns.
template <class Placement>
struct Param {
  using placement_type = Placement;
  ParamDesc desc;
  Tensor value;
  Tensor main_grad;
};

/// A parameter seen without its placement type: what one walk over a model yields.
struct ParamRef {
  const ParamDesc* desc = nullptr;
  Tensor* value = nullptr;
  Tensor* main_grad = nullptr;
};

}  // namespace mgfl

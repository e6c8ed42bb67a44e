// Which layouts fit which models, and that the same rules judge them when compiling.
#include "tests/support/doctest.hpp"

#include <string>

#include "mgfl/policy/static_model.hpp"
#include "policies/parallel/megatron.hpp"
#include "policies/parallel/self.hpp"

using namespace mgfl::parallel;
using mgfl::UserError;

namespace {

constexpr ModelSizes model{
    .num_layers = 12, .num_attention_heads = 8, .num_query_groups = 2, .ffn_hidden_size = 96};

constexpr bool tensor_parallel_fits(ModelSizes m, int tp) {
  return fit::attention_heads(m, {.tp = tp}) && fit::query_groups(m, {.tp = tp}) && fit::ffn(m, {.tp = tp});
}
static_assert(tensor_parallel_fits(model, 1) && tensor_parallel_fits(model, 2));
static_assert(tensor_parallel_fits(model, 4) && tensor_parallel_fits(model, 8));  // copies of kv heads
static_assert(!tensor_parallel_fits(model, 3) && !tensor_parallel_fits(model, 16) &&
              !tensor_parallel_fits(model, 0));
static_assert(fit::layers(model, {.pp = 3, .vpp = 4}) && !fit::layers(model, {.pp = 4, .vpp = 2}));
static_assert(fit::experts({.num_moe_experts = 8}, {.ep = 4}) &&
              !fit::experts({.num_moe_experts = 8}, {.ep = 3}));
static_assert(!fit::experts(model, {.ep = 2}) && fit::experts(model, {}));
static_assert(!fit::sizes_are_there({}) && fit::sizes_are_there(model));

template <int Size>
using Tensor = Megatron<Tp<Size>, Pp<1>, Cp<1>, Ep<1>, Self>;
using Two = StaticModel<model, Tensor<2>>;
using Any = StaticModel<model, Tensor<dynamic>>;
static_assert(ParallelPolicy<Two> && Two::tensor_model_parallel_size == 2 &&
              Two::model_sizes.num_layers == 12);
static_assert(ParallelPolicy<Any>);
static_assert(std::is_same_v<Tensor<1>, DataParallel<Self>>);
static_assert(std::is_same_v<Tensor<dynamic>, TensorAndDataParallel<Self>>);

std::string refusal(const ModelSizes& sizes, const Extents& extents) {
  try {
    check_model_fits(sizes, extents);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

ModelSizes with(std::int64_t ModelSizes::*size, std::int64_t value) {
  ModelSizes changed = model;
  changed.*size = value;
  return changed;
}

}  // namespace

TEST_CASE("layouts that divide the model's sizes fit") {
  for (const int tp : {1, 2, 4, 8}) CHECK(refusal(model, {.tp = tp}) == "");
  for (const int pp : {1, 2, 3, 4, 6, 12}) CHECK(refusal(model, {.pp = pp, .dp = 3}) == "");
  CHECK(refusal(model, {.pp = 2, .vpp = 3}) == "");
  const ModelSizes experts{.num_layers = 2,
                           .num_attention_heads = 4,
                           .num_query_groups = 4,
                           .num_moe_experts = 6,
                           .moe_ffn_hidden_size = 8};
  CHECK(refusal(experts, {.tp = 2, .ep = 3, .etp = 2, .dp = 3}) == "");
}

TEST_CASE("a layout that does not fit is refused with both numbers, and with those that would") {
  // 4 heads, 2 kv heads, three ranks: both are named.
  const std::string message =
      refusal({.num_layers = 2, .num_attention_heads = 4, .num_query_groups = 2, .ffn_hidden_size = 6},
              {.tp = 3, .dp = 4});
  CHECK(message ==
        "the layout does not fit the model: tensor-model-parallel-size 3 does not divide num_attention_heads "
        "4; of "
        "tensor-model-parallel-size 3 and num_query_groups 2 (kv heads) neither divides the other (sizes "
        "that fit 12 ranks: "
        "1, 2). Choose sizes that do, or another model.");
  CHECK(refusal(with(&ModelSizes::num_attention_heads, 12), {.tp = 3, .dp = 2}) ==
        "the layout does not fit the model: of tensor-model-parallel-size 3 and num_query_groups 2 (kv "
        "heads) neither "
        "divides the other (sizes that fit 6 ranks: 1, 2, 6). Choose sizes that do, or another model.");
  CHECK(refusal(with(&ModelSizes::ffn_hidden_size, 98), {.tp = 4}) ==
        "the layout does not fit the model: tensor-model-parallel-size 4 does not divide ffn_hidden_size 98 "
        "(sizes that "
        "fit 4 ranks: 1, 2). Choose sizes that do, or another model.");
  CHECK(refusal(model, {.pp = 5}) ==
        "the layout does not fit the model: pipeline-model-parallel-size 5 x "
        "virtual-pipeline-model-parallel-size 1 does "
        "not divide num_layers 12. Choose sizes that do, or another model.");
  CHECK(refusal(model, {.pp = 4, .vpp = 2})
            .find("-size 4 x virtual-pipeline-model-parallel-size 2 does not divide "
                  "num_layers 12") != std::string::npos);
  CHECK(refusal(model, {.ep = 2, .dp = 2})
            .find("expert-model-parallel-size 2 does not divide num_moe_experts 0") != std::string::npos);
  ModelSizes experts = with(&ModelSizes::num_moe_experts, 4);
  experts.moe_ffn_hidden_size = 9;
  CHECK(refusal(experts, {.tp = 2, .ep = 3, .etp = 2, .dp = 3}) ==
        "the layout does not fit the model: expert-model-parallel-size 3 does not divide num_moe_experts 4, "
        "or there are "
        "none; expert-tensor-parallel-size 2 does not divide moe_ffn_hidden_size 9. Choose sizes that do, or "
        "another "
        "model.");
}

TEST_CASE("what is no layout, or no model, is refused before it is compared") {
  for (int Extents::*axis :
       {&Extents::tp, &Extents::pp, &Extents::vpp, &Extents::ep, &Extents::etp, &Extents::dp})
    for (const int size : {0, dynamic}) {
      Extents extents;
      extents.*axis = size;
      CHECK(refusal(model, extents).find("it must be 1 or more") != std::string::npos);
    }
  for (std::int64_t ModelSizes::*size : {&ModelSizes::num_layers, &ModelSizes::num_attention_heads,
                                         &ModelSizes::num_query_groups, &ModelSizes::ffn_hidden_size}) {
    CHECK(refusal(with(size, 0), {}).find("give every size") != std::string::npos);
    CHECK(refusal(with(size, -2), {}).find("give every size") != std::string::npos);
  }
  CHECK(refusal(with(&ModelSizes::num_moe_experts, 4), {}).find("give every size") != std::string::npos);
}

TEST_CASE("what a policy fixes when compiling is what it is given") {
  CHECK_NOTHROW(check_model_fits<Two>(model, {.tp = 2, .dp = 3}));
  CHECK_NOTHROW(check_model_fits<Any>(model, {.tp = 4}));
  CHECK_NOTHROW(check_model_fits<Tensor<2>>(with(&ModelSizes::num_layers, 7), {.tp = 2}));
  CHECK_THROWS_WITH_AS(check_model_fits<Any>(model, {.tp = 3}), doctest::Contains("num_attention_heads 8"),
                       UserError);
  CHECK_THROWS_WITH_AS(
      check_model_fits<Two>(model, {.tp = 4}),
      "the engine was compiled for tensor-model-parallel-size 2, its context has 4; give both the "
      "same, or compile it for a dynamic extent.",
      UserError);
  CHECK_THROWS_WITH_AS(check_static_extents<DataParallel<Self>>({.tp = 2}),
                       doctest::Contains("tensor-model-parallel-size 1, its context has 2"), UserError);
  CHECK_THROWS_WITH_AS(check_static_extents<TensorAndDataParallel<Self>>({.pp = 2}),
                       doctest::Contains("pipeline-model-parallel-size 1, its context has 2"), UserError);
  CHECK_THROWS_WITH_AS(
      check_model_fits<Any>(with(&ModelSizes::num_query_groups, 4), {}),
      "the engine was compiled for a model with num_query_groups 2, this one has 4; use a policy "
      "without StaticModel<...>.",
      UserError);
}

TEST_CASE("what this version has no engine for is refused with its number") {
  CHECK(checked_extents(8, {.tensor_model_parallel_size = 2}).dp == 4);
  CHECK(checked_extents(8, {.tensor_model_parallel_size = 2}).etp == 2);
  CHECK(checked_extents(8, {.tensor_model_parallel_size = 2, .expert_tensor_parallel_size = 1}).etp == 1);
  const auto refuses = [](const ModelParallelSizes& sizes, const char* text) {
    CHECK_THROWS_WITH_AS(checked_extents(8, sizes), doctest::Contains(text), UserError);
  };
  refuses({.pipeline_model_parallel_size = 2},
          "pipeline-model-parallel-size is 2; this version has tensor and data");
  refuses({.context_parallel_size = 2}, "context-parallel-size is 2; this version has tensor and data");
  refuses({.expert_model_parallel_size = 2},
          "expert-model-parallel-size is 2; this version has tensor and data");
  refuses({.virtual_pipeline_model_parallel_size = 2}, "needs pipeline-model-parallel-size 2 or more");
  refuses({.tensor_model_parallel_size = 4, .expert_tensor_parallel_size = 2},
          "expert-tensor-parallel-size is 2 and tensor-model-parallel-size 4;");
  refuses({.tensor_model_parallel_size = 3}, "world size 8 is not divisible by tensor-model-parallel-size 3");
  refuses({.tensor_model_parallel_size = 0}, "tensor-model-parallel-size is 0; it must be 1 or more");
  refuses({.expert_tensor_parallel_size = 0}, "expert-tensor-parallel-size is 0; it must be 1 or more");
}

TEST_CASE("a process alone has no second rank") {
  CHECK_NOTHROW(check_fits_alone({}));
  CHECK_THROWS_WITH_AS(
      check_fits_alone({.tensor_model_parallel_size = 2, .context_parallel_size = 3}),
      doctest::Contains("need more ranks than this process alone; start it under mpirun, such as mpirun "
                        "-n 6."),
      UserError);
  auto state = initialize_model_parallel(Self());
  const auto context = state.context();
  CHECK(context.extents.world() == 1);
  CHECK(context.tensor_parallel->size() == 1);
  CHECK_THROWS_WITH_AS(initialize_model_parallel(Self(), {.order = "tp-x"}),
                       doctest::Contains("names an axis \"x\""), UserError);
}

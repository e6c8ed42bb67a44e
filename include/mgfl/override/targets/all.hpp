/// Every overridable thing of this build, in one list, with the proof that no two share a path or a
/// method_key.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mgfl/base/hash.hpp"
#include "mgfl/override/targets/dist_checkpointing.hpp"
#include "mgfl/override/targets/distributed.hpp"
#include "mgfl/override/targets/engine.hpp"
#include "mgfl/override/targets/kernels.hpp"
#include "mgfl/override/targets/optimizer.hpp"
#include "mgfl/override/targets/tensor_parallel.hpp"
#include "mgfl/override/targets/training.hpp"

namespace mgfl {

namespace detail {

template <class...>
struct concatenate;
template <class... As>
struct concatenate<list<As...>> : std::type_identity<list<As...>> {};
template <class... As, class... Bs, class... Rest>
struct concatenate<list<As...>, list<Bs...>, Rest...> : concatenate<list<As..., Bs...>, Rest...> {};

/// The first two equal texts, by index; {0, 0} when all differ.
struct index_pair {
  std::size_t first = 0, second = 0;
};
template <std::size_t N>
consteval index_pair first_duplicate(const std::string_view (&texts)[N]) {
  std::uint64_t hashes[N]{};  // comparing numbers keeps this cheap for hundreds of targets
  for (std::size_t i = 0; i < N; ++i) hashes[i] = fnv1a(texts[i]);
  for (std::size_t i = 0; i < N; ++i)
    for (std::size_t j = i + 1; j < N; ++j)
      if (hashes[i] == hashes[j] && texts[i] == texts[j]) return {i, j};
  return {};
}

template <std::size_t I, class... Ts>
struct element;
template <class T, class... Ts>
struct element<0, T, Ts...> : std::type_identity<T> {};
template <std::size_t I, class T, class... Ts>
struct element<I, T, Ts...> : element<I - 1, Ts...> {};

/// Instantiated with the two culprits, so that the compiler prints them.
template <class A, class B>
struct two_targets {
  static_assert(std::is_same_v<A, B> || A::path != B::path,
                "mgfl: two targets share one path; each overridable thing has one target.");
  static_assert(std::is_same_v<A, B> || A::key != B::key,
                "mgfl: two targets share one method_key (the last two segments of the path); rename one.");
};

template <class List>
struct distinct;
template <class... Ts>
struct distinct<list<Ts...>> {
  static constexpr std::string_view keys[] = {Ts::key...};
  static constexpr index_pair clash = first_duplicate(keys);  // equal paths have equal keys
  static constexpr auto checked = sizeof(
      two_targets<typename element<clash.first, Ts...>::type, typename element<clash.second, Ts...>::type>);
};

}  // namespace detail

/// Fails to compile where two targets of the list collide.
template <class List>
inline constexpr bool targets_are_distinct = detail::distinct<List>::checked > 0;

using all_targets = typename detail::concatenate<targets::optimizer_targets, targets::distributed_targets,
                                                 targets::kernel_targets, targets::dist_checkpointing_targets,
                                                 targets::training_targets, targets::engine_targets,
                                                 targets::tensor_parallel_targets>::type;
static_assert(targets_are_distinct<all_targets>);

}  // namespace mgfl

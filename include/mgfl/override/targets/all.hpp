/// Every overridable thing of this build, in one list.
#pragma once

#include "mgfl/override/targets/kernels.hpp"
#include "mgfl/override/targets/optimizer.hpp"

namespace mgfl {

namespace detail {
template <class...>
struct concatenate;
template <class... As>
struct concatenate<list<As...>> : std::type_identity<list<As...>> {};
template <class... As, class... Bs, class... Rest>
struct concatenate<list<As...>, list<Bs...>, Rest...> : concatenate<list<As..., Bs...>, Rest...> {};
}  // namespace detail

using all_targets = typename detail::concatenate<targets::optimizer_targets, targets::kernel_targets>::type;

}  // namespace mgfl

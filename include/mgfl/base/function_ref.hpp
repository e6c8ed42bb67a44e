/// A borrowed callable: one indirect call, no allocation, no ownership (std::function_ref arrives with
/// C++26).
#pragma once

#include <type_traits>
#include <utility>

namespace mgfl {

template <class Signature>
class function_ref;

/// Borrows any callable of this signature, functions too; the callable must outlive the reference.
template <class Result, class... Args>
class function_ref<Result(Args...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, function_ref> &&
           std::is_invocable_r_v<Result, F&, Args...>) function_ref(F&& callable)
  noexcept  // NOLINT: implicit on purpose, as in the standard
      : object_(address_of(callable)), call_([](void* object, Args... args) -> Result {
          return (*reinterpret_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  template <class F>
  static void* address_of(F& callable) noexcept {
    if constexpr (std::is_function_v<F>)
      return reinterpret_cast<void*>(&callable);
    else
      return const_cast<void*>(static_cast<const void*>(&callable));
  }

  void* object_;
  Result (*call_)(void*, Args...);
};

}  // namespace mgfl

#include "tests/unit/cuda_kernels/support.hpp"

#include <array>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "vendors/cuda/device/place.hpp"
#include "vendors/cuda/operations/adamw.hpp"
#include "vendors/cuda/operations/column_sums.hpp"
#include "vendors/cuda/operations/embedding.hpp"
#include "vendors/cuda/operations/rms_norm.hpp"
#include "vendors/cuda/operations/rotary.hpp"
#include "vendors/cuda/operations/swiglu.hpp"
#include "vendors/cuda/operations/vocabulary.hpp"

namespace cuda_tests {

namespace {

bool backward = false;
int launch_count = 0;

template <class Body>
void in_order(std::int64_t count, Body body) {
  for (std::int64_t i = 0; i < count; ++i) body(backward ? count - 1 - i : i);
}

template <int Threads>
struct HostTeam {
  static constexpr int threads = Threads;

  template <class Body>
  void each(std::int64_t n, Body body) const {
    in_order(threads, [&](std::int64_t thread) {
      for (std::int64_t i = thread; i < n; i += threads) body(i);
    });
  }

  template <class T, class Element, class Combine>
  T reduce(std::int64_t n, T initial, Element element, Combine combine) const {
    std::array<T, threads> values;
    in_order(threads, [&](std::int64_t thread) {
      values[thread] = initial;
      for (std::int64_t i = thread; i < n; i += threads) values[thread] = combine(values[thread], element(i));
    });
    for (int stride = threads / 2; stride > 0; stride /= 2)
      for (int thread = 0; thread < stride; ++thread)
        values[thread] = combine(values[thread], values[thread + stride]);
    return values[0];
  }
};

class HostExecutor {
 public:
  template <int Threads, class Pass>
  void rows(std::int64_t count, const Pass& pass) {
    in_order(count, [&](std::int64_t row) { pass(HostTeam<Threads>{}, row); });
  }

  template <class T>
  T* scratch(std::int64_t n) {
    const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
    scratch_.push_back(std::make_unique<std::byte[]>(bytes));
    std::memset(scratch_.back().get(), 0xff, bytes);  // NaN, where a kernel reads what it did not write
    return reinterpret_cast<T*>(scratch_.back().get());
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> scratch_;
};

}  // namespace

void prepare_run(int run) { backward = run % 2 == 1; }

int launches() { return launch_count; }

}  // namespace cuda_tests

namespace mgfl::cuda {

std::optional<Place> place_of(const Tensor& tensor) { return Place{tensor.device().index(), nullptr}; }

bool libtorch_has_cuda() { return true; }

std::string why_no_device() { return {}; }

template <class Operation>
void launch(const Place&, const Operation& operation) {
  ++cuda_tests::launch_count;
  cuda_tests::HostExecutor executor;
  operation.run(executor);
}

template <template <class> class... Operations>
struct Emulated {
  template <class D>
  static constexpr auto all_of = std::make_tuple(&launch<Operations<D>>...);
  static constexpr auto all =
      std::make_tuple(all_of<double>, all_of<float>, all_of<c10::BFloat16>, all_of<c10::Half>);
};
template struct Emulated<BiasGrad, Swiglu, SwigluBackward, RmsNorm, RmsNormBackward, QkNormRotary,
                         QkNormRotaryBackward, Embedding, EmbeddingBackward, AdamW, VocabRowStatistics,
                         VocabRowsBackward>;

}  // namespace mgfl::cuda

// The conformance suite on Nccl: one rank for each GPU, or, with the emulated NCCL, on the ranks of an MPI
// job.
#include "tests/mpi/conformance.hpp"

#include <map>
#include <string>
#include <utility>

#include "policies/parallel/nccl.hpp"
#include "tests/support/mpi.hpp"

namespace mgfl_test {

using mgfl::parallel::Nccl;
using mgfl::parallel::NcclOptions;
using mgfl::parallel::TorchrunPlace;

namespace {

// The GPU's copies of host tensors, for one call; what shares memory here shares it there.
class Copies {
 public:
  explicit Copies(const Nccl& group)
      : device_(group.device_type_for_comm(), static_cast<c10::DeviceIndex>(group.device_index())) {}

  Tensor there(const Tensor& here) {
    if (!here.defined()) return here;
    auto& copy = copies_[here.storage().data()];
    if (!copy.here.defined()) {
      copy.here = mgfl::from_blob(here.storage().mutable_data(),
                                  {static_cast<std::int64_t>(here.storage().nbytes())}, at::kByte);
      copy.there = copy.here.to(device_, at::kByte);
    }
    return mgfl::empty({0}, here.scalar_type())
        .to(device_, here.scalar_type())
        .set_(copy.there.storage(), here.storage_offset(), here.sizes(), here.strides());
  }
  void bring_back() {
    for (auto& [data, copy] : copies_)
      if (copy.here.numel() > 0 && copy.here.data_ptr() != copy.there.data_ptr()) copy.here.copy_(copy.there);
  }

 private:
  struct Copy {
    Tensor here, there;
  };
  c10::Device device_;
  std::map<const void*, Copy> copies_;
};

// Nccl for the suite, whose tensors lie on the host.
class OnGpu {
 public:
  explicit OnGpu(Nccl group) : group_(std::move(group)) {}

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  void all_reduce(Tensor& t, ReduceOp op) {
    with([&](Tensor& there) { group_.all_reduce(there, op); }, t);
  }
  void broadcast(Tensor& t, int root) {
    with([&](Tensor& there) { group_.broadcast(there, root); }, t);
  }
  void all_gather(const Tensor& part, Tensor& all) {
    with([&](Tensor& p, Tensor& a) { group_.all_gather(p, a); }, part, all);
  }
  void all_gather_v(const Tensor& part, Tensor& all, std::span<const std::int64_t> counts) {
    with([&](Tensor& p, Tensor& a) { group_.all_gather_v(p, a, counts); }, part, all);
  }
  void reduce_scatter(const Tensor& whole, Tensor& part, ReduceOp op) {
    with([&](Tensor& w, Tensor& p) { group_.reduce_scatter(w, p, op); }, whole, part);
  }
  void reduce_scatter_v(const Tensor& whole, Tensor& part, std::span<const std::int64_t> counts,
                        ReduceOp op) {
    with([&](Tensor& w, Tensor& p) { group_.reduce_scatter_v(w, p, counts, op); }, whole, part);
  }
  void all_to_all(const Tensor& sent, Tensor& received) {
    with([&](Tensor& s, Tensor& r) { group_.all_to_all(s, r); }, sent, received);
  }
  void all_to_all_v(const Tensor& sent, std::span<const std::int64_t> to, Tensor& received,
                    std::span<const std::int64_t> from) {
    with([&](Tensor& s, Tensor& r) { group_.all_to_all_v(s, to, r, from); }, sent, received);
  }
  void send(const Tensor& t, int to) {
    with([&](Tensor& there) { group_.send(there, to); }, t);
  }
  void recv(Tensor& t, int from) {
    with([&](Tensor& there) { group_.recv(there, from); }, t);
  }
  void exchange(std::span<const Transfer> transfers) {
    Copies copies(group_);
    std::vector<Tensor> tensors;
    tensors.reserve(transfers.size());
    std::vector<Transfer> there(transfers.begin(), transfers.end());
    for (Transfer& transfer : there) transfer.tensor = &tensors.emplace_back(copies.there(*transfer.tensor));
    group_.exchange(there);
    copies.bring_back();
  }
  void barrier() { group_.barrier(); }
  std::int64_t all_reduce_value(std::int64_t value, ReduceOp op) {
    return group_.all_reduce_value(value, op);
  }
  double all_reduce_value(double value, ReduceOp op) { return group_.all_reduce_value(value, op); }
  OnGpu split(int color, int key, std::string_view name = "split") {
    return OnGpu(group_.split(color, key, name));
  }

 private:
  template <class Call, class... Tensors>
  void with(Call&& call, const Tensors&... here) {
    Copies copies(group_);
    std::tuple<decltype((void)here, Tensor())...> there{copies.there(here)...};
    std::apply(call, there);
    copies.bring_back();
  }

  Nccl group_;
};

}  // namespace

struct Compared {
  static OnGpu make() { return OnGpu(Nccl(session(), NcclOptions{.compare_calls = true})); }
  static std::vector<std::int64_t> borders(int) { return {1000}; }
};

struct Plain {
  static OnGpu make() { return OnGpu(Nccl(session())); }
  static std::vector<std::int64_t> borders(int) { return {1000, 1 << 16}; }
};

// As torchrun would start the ranks of one machine; each group meets at a port of its own.
TorchrunPlace place_of_rank() {
  static int port = 20000 + static_cast<int>(::getppid() % 20000);
  return {.rank = session().rank(),
          .size = session().size(),
          .local_rank = session().local_rank(),
          .address = "127.0.0.1",
          .port = ++port,
          .job = 1};
}

struct OverTorchrun {
  static OnGpu make() { return OnGpu(Nccl(place_of_rank(), NcclOptions{.timeout_seconds = 60})); }
  static std::vector<std::int64_t> borders(int) { return {1000}; }
};

// All but the order of sums, which NCCL does not say, and what a rank that is wrong tells the others, for
// which calls must be compared.
TEST_CASE_TEMPLATE_INVOKE(conform_known, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_dtypes, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_rounding, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_bits, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_nan, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_broadcast, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_gather, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_gather_v, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_all_to_all, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_exchange, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_pairs, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_send, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_apart, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_barrier, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_values, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_split, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_reversed, Plain);
TEST_CASE_TEMPLATE_INVOKE(conform_known, Compared);
TEST_CASE_TEMPLATE_INVOKE(conform_gather_v, Compared);
TEST_CASE_TEMPLATE_INVOKE(conform_all_to_all, Compared);
TEST_CASE_TEMPLATE_INVOKE(conform_exchange, Compared);
TEST_CASE_TEMPLATE_INVOKE(conform_pairs, Compared);
TEST_CASE_TEMPLATE_INVOKE(conform_send, Compared);
TEST_CASE_TEMPLATE_INVOKE(conform_split, Compared);
TEST_CASE_TEMPLATE_INVOKE(conform_wrong, Compared);
TEST_CASE_TEMPLATE_INVOKE(conform_known, OverTorchrun);
TEST_CASE_TEMPLATE_INVOKE(conform_split, OverTorchrun);
TEST_CASE_TEMPLATE_INVOKE(conform_values, OverTorchrun);

namespace {

c10::Device device_of(const Nccl& group) {
  return {group.device_type_for_comm(), static_cast<c10::DeviceIndex>(group.device_index())};
}

}  // namespace

TEST_CASE("the shares of a reduce_scatter_v are summed in rank order") {
  Nccl c(session());
  REQUIRE(c.size() <= 8);
  const float terms[] = {1e8f, 1, -1e8f, 3, 2e8f, 5, -2e8f, 2};
  float sum = 0;
  for (int r = 0; r < c.size(); ++r) sum += terms[r];
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(c.size()), 37);
  const Tensor whole = filled(37 * c.size(), at::kFloat, [&](std::int64_t) {
                         return terms[c.rank()];
                       }).to(device_of(c), at::kFloat);
  Tensor part = whole.new_empty({37});
  c.reduce_scatter_v(whole, part, counts, ReduceOp::sum);
  CHECK(same_bits(part.to(c10::Device(at::kCPU), at::kFloat),
                  filled(37, at::kFloat, [&](std::int64_t) { return sum; })));
}

TEST_CASE("an all_reduce runs beside other work, and is there once it is waited for") {
  Nccl c(session());
  const std::int64_t n = 300'007;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto own = [&](int shift) {
      return filled(n, dtype, [&](std::int64_t i) { return whole_number(c.rank(), i + shift, dtype); })
          .to(device_of(c), dtype);
    };
    Tensor first = own(0), second = own(5), other = own(1);
    auto one = c.start_all_reduce(first, ReduceOp::sum);
    auto two = c.start_all_reduce(second, ReduceOp::avg);
    for (int i = 0; i < 20; ++i) other.mul_(1.0);  // on the caller's stream
    one.wait();
    one.wait();  // once more does no harm
    const auto expected = [&](int shift, ReduceOp op) {
      return filled(n, dtype, [&](std::int64_t i) { return reduced(c.size(), i + shift, dtype, op); });
    };
    const auto here = [&](const Tensor& t) { return t.to(c10::Device(at::kCPU), dtype); };
    CHECK(same_bits(here(first), expected(0, ReduceOp::sum)));
    { auto moved = std::move(two); }  // waits as it ends
    CHECK(same_bits(here(second), expected(5, ReduceOp::avg)));
    CHECK(same_bits(here(other), here(own(1))));
  }
}

TEST_CASE("a long queue on the caller's stream comes before, and its own next work after") {
  Nccl c(session());
  Tensor t = mgfl::zeros({1 << 22}, at::kFloat).to(device_of(c), at::kFloat);
  for (int turn = 0; turn < 50; ++turn) {
    t.add_(1.0);
    c.all_reduce(t, ReduceOp::avg);
  }
  t.mul_(2.0);
  CHECK(t.min().item<float>() == 100.0f);
  CHECK(t.max().item<float>() == 100.0f);
}

TEST_CASE("a tensor elsewhere than on the group's GPU is refused") {
  Nccl c(session());
  if (c.device_type_for_comm() == at::kCPU) return;  // emulated: there is no other place
  Tensor host = mgfl::zeros({3}, at::kFloat);
  CHECK_THROWS_WITH_AS(c.all_reduce(host, ReduceOp::sum), doctest::Contains("not on this rank's GPU"),
                       mgfl::RunError);
}

TEST_CASE("compared calls that differ are named on every rank") {
  Nccl c(session(), NcclOptions{.compare_calls = true});
  if (c.size() == 1) return;
  const bool odd = c.rank() == 1;
  const auto on_device = [&](std::int64_t n, at::ScalarType dtype) {
    return mgfl::zeros({n}, dtype).to(device_of(c), dtype);
  };
  Tensor two = on_device(2, at::kFloat), three = on_device(3, at::kFloat), wide = on_device(2, at::kDouble);
  CHECK_THROWS_WITH_AS(
      c.all_reduce(odd ? three : two, ReduceOp::sum),
      doctest::Contains("rank 0 calls all_reduce of 2 fp32 elements by sum, rank 1 calls all_reduce "
                        "of 3 fp32 elements by sum; every rank must make the same call."),
      mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_reduce(odd ? wide : two, ReduceOp::sum), doctest::Contains("of 2 fp64"),
                       mgfl::RunError);
  CHECK_THROWS_WITH_AS(odd ? c.barrier() : c.broadcast(two, 0), doctest::Contains("rank 1 calls barrier"),
                       mgfl::RunError);
  if (c.size() > 2) return;
  const std::vector<std::int64_t> counts =
                                      odd ? std::vector<std::int64_t>{2, 1} : std::vector<std::int64_t>{1, 2},
                                  ones{1, 2};
  Tensor part = on_device(1, at::kFloat), received = on_device(3, at::kFloat);
  CHECK_THROWS_WITH_AS(c.all_gather_v(part, three, counts), doctest::Contains("rank 1 the counts 2, 1"),
                       mgfl::RunError);
  CHECK_THROWS_WITH_AS(c.all_to_all_v(three, ones, received, ones),
                       doctest::Contains("rank 0 sends 2 rows, rank 1 expects 1 rows"), mgfl::RunError);
  if (odd)
    CHECK_THROWS_WITH_AS(c.recv(two, 0),
                         doctest::Contains("rank 0 sends 3 fp32 elements, rank 1 expects 2 fp32"),
                         mgfl::RunError);
  else
    CHECK_THROWS_WITH_AS(c.send(three, 1),
                         doctest::Contains("rank 0 sends 3 fp32 elements, rank 1 expects 2 fp32"),
                         mgfl::RunError);
  c.all_reduce(two, ReduceOp::sum);
}

TEST_CASE("places") {
  Nccl c(session());
  CHECK(c.rank() == session().rank());
  CHECK(c.size() == session().size());
  Nccl reversed = c.split(0, -c.rank(), "reversed");
  CHECK(reversed.rank() == c.size() - 1 - c.rank());
  CHECK(reversed.world_rank() == session().rank());
  CHECK(reversed.device_index() == c.device_index());
}

}  // namespace mgfl_test

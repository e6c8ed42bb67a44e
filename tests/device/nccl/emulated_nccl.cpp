// NCCL's functions over MPI, on host memory: what policies/parallel/nccl.cpp asks of NCCL, and in which
// groups, is so tested without a GPU. Like NCCL it runs grouped calls as one, drops NaN from a max, and
// leaves the order of sums open (here that of the ranks).
#include <mpi.h>
#include <nccl.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

struct ncclComm {
  MPI_Comm comm;
  int rank, size;
};

namespace {

struct Message {
  ncclComm_t comm;
  bool sends;
  void* data;
  int bytes, peer;
};

int open_groups = 0;
std::vector<std::function<void()>> collectives;
std::vector<Message> messages;

void run_all() {
  std::vector<MPI_Request> requests;
  for (const Message& m : messages)
    if (m.sends)
      MPI_Isend(m.data, m.bytes, MPI_BYTE, m.peer, 0, m.comm->comm, &requests.emplace_back());
    else
      MPI_Irecv(m.data, m.bytes, MPI_BYTE, m.peer, 0, m.comm->comm, &requests.emplace_back());
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  messages.clear();
  for (const auto& collective : collectives) collective();
  collectives.clear();
}

ncclResult_t enqueue(std::function<void()> collective) {
  collectives.push_back(std::move(collective));
  if (open_groups == 0) run_all();
  return ncclSuccess;
}

ncclResult_t enqueue(const Message& message) {
  messages.push_back(message);
  if (open_groups == 0) run_all();
  return ncclSuccess;
}

template <class F>
void with_type(ncclDataType_t type, F&& body) {
  switch (type) {
    case ncclFloat32:
      return body(float{});
    case ncclFloat64:
      return body(double{});
    case ncclInt64:
      return body(std::int64_t{});
    case ncclInt32:
      return body(std::int32_t{});
    default:
      return body(std::uint8_t{});
  }
}

std::size_t width_of(ncclDataType_t type) {
  std::size_t width = 0;
  with_type(type, [&](auto zero) { width = sizeof zero; });
  return width;
}

// out = the reduction of the `size` parts of `all`.
void reduce(const std::byte* all, int size, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
            void* out) {
  with_type(type, [&]<class T>(T) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto part = [&](int r) {
        T value;
        std::memcpy(&value, all + (static_cast<std::size_t>(r) * count + i) * sizeof(T), sizeof value);
        return value;
      };
      T result = part(0);
      for (int r = 1; r < size; ++r) {
        if (op == ncclMax) {
          if constexpr (std::is_floating_point_v<T>)
            result = std::fmax(result, part(r));
          else
            result = std::max(result, part(r));
        } else if constexpr (std::is_integral_v<T>) {
          using U = std::make_unsigned_t<T>;
          result = static_cast<T>(static_cast<U>(static_cast<U>(result) + static_cast<U>(part(r))));
        } else {
          result += part(r);
        }
      }
      std::memcpy(static_cast<std::byte*>(out) + i * sizeof(T), &result, sizeof result);
    }
  });
}

ncclResult_t make(MPI_Comm mpi, ncclComm_t* comm) {
  *comm = new ncclComm{mpi, 0, 1};
  MPI_Comm_rank(mpi, &(*comm)->rank);
  MPI_Comm_size(mpi, &(*comm)->size);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 17, sizeof *id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  // The identifier must have come, and every rank must say its own place.
  int world_rank = 0, world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  if (size != world_size || rank != world_rank || id.internal[0] != 17 || id.internal[sizeof id - 1] != 17)
    return ncclInvalidArgument;
  MPI_Comm mpi;
  MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
  return make(mpi, comm);
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* comm, ncclConfig_t*) {
  MPI_Comm mpi;
  MPI_Comm_split(parent->comm, color, key, &mpi);
  return make(mpi, comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  MPI_Comm_free(&comm->comm);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t status) {
  return status == ncclSuccess ? "no error" : "invalid argument";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclCommCount(ncclComm_t comm, int* size) {
  *size = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++open_groups;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--open_groups == 0) run_all();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t) {
  return enqueue([=] {
    const std::size_t bytes = count * width_of(type);
    std::vector<std::byte> all(bytes * static_cast<std::size_t>(comm->size));
    MPI_Allgather(in, static_cast<int>(bytes), MPI_BYTE, all.data(), static_cast<int>(bytes), MPI_BYTE,
                  comm->comm);
    reduce(all.data(), comm->size, count, type, op, out);
  });
}

ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  return enqueue([=] {
    const int bytes = static_cast<int>(count * width_of(type));
    std::vector<std::byte> all(static_cast<std::size_t>(bytes) * static_cast<std::size_t>(comm->size));
    MPI_Alltoall(in, bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm->comm);
    reduce(all.data(), comm->size, count, type, op, out);
  });
}

ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t) {
  return enqueue([=] {
    const std::size_t bytes = count * width_of(type);
    std::vector<std::byte> own(bytes);  // `in` may lie in `out`
    std::memcpy(own.data(), in, bytes);
    MPI_Allgather(own.data(), static_cast<int>(bytes), MPI_BYTE, out, static_cast<int>(bytes), MPI_BYTE,
                  comm->comm);
  });
}

ncclResult_t ncclBroadcast(const void*, void* out, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t) {
  return enqueue(
      [=] { MPI_Bcast(out, static_cast<int>(count * width_of(type)), MPI_BYTE, root, comm->comm); });
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  return enqueue(
      Message{comm, true, const_cast<void*>(data), static_cast<int>(count * width_of(type)), peer});
}

ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  return enqueue(Message{comm, false, data, static_cast<int>(count * width_of(type)), peer});
}

}  // extern "C"

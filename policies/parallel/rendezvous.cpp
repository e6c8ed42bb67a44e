#include "policies/parallel/rendezvous.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "mgfl/base/error.hpp"
#include "mgfl/base/hash.hpp"

namespace mgfl::parallel {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* advice =
    "Start the ranks with torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK, "
    "MASTER_ADDR and MASTER_PORT for each of them.";

const char* text_of(const char* name) {
  const char* text = std::getenv(name);
  check_user(text && *text, "the environment variable ", name,
             " is not set, which a rank that torchrun starts needs. ", advice);
  return text;
}

int number_of(const char* name, int least, int most) {
  const char* text = text_of(name);
  const char* end = text + std::strlen(text);
  int number = 0;
  const auto [stop, fault] = std::from_chars(text, end, number);
  check_user(fault == std::errc() && stop == end && number >= least && number <= most,
             "the environment variable ", name, " is \"", text, "\", and must be a whole number from ", least,
             " to ", most, ". ", advice);
  return number;
}

constexpr int max_port = 65535;

// What a rank says when it comes, and what it is answered. Ranks of a job share their byte order.
struct Hello {
  static constexpr std::uint64_t magic_of_mgfl = 0x31766472'6c66676dULL;
  std::uint64_t magic = magic_of_mgfl, job = 0;
  std::int32_t rank = 0, size = 0;
};
enum class Answer : std::uint32_t { welcome = 1, other_job, other_size, rank_taken, incomplete };

// Single bytes on the connections of a job that runs.
constexpr char goodbye = 'b', left = 'l';

int milliseconds_until(Clock::time_point deadline) {
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(rest, 0, 1'000'000));
}

bool ready(int socket, short event, Clock::time_point deadline) {
  pollfd waited{socket, event, 0};
  int found = 0;
  do found = ::poll(&waited, 1, milliseconds_until(deadline));
  while (found < 0 && errno == EINTR);
  return found > 0;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// All bytes by the deadline; false where the other end has gone or does not take them.
bool send_all(int socket, const void* data, std::size_t bytes, Clock::time_point deadline) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    if (!ready(socket, POLLOUT, deadline)) return false;
    const ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && !would_block()) return false;
    if (sent > 0) at += sent, bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, std::size_t bytes, Clock::time_point deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (!ready(socket, POLLIN, deadline)) return false;
    const ssize_t got = ::recv(socket, at, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && !would_block())) return false;
    if (got > 0) at += got, bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

void answer(int socket, Answer answer) {
  const auto code = static_cast<std::uint32_t>(answer);
  send_all(socket, &code, sizeof code, Clock::now() + std::chrono::seconds(2));
}

void tune(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

// A socket that listens on all of this machine's addresses.
int listen_at(int port) {
  int error = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    const int socket = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) {
      error = errno;
      continue;
    }
    const int on = 1, off = 0;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage storage{};
    socklen_t length = sizeof(sockaddr_in);
    if (family == AF_INET6) {
      ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      auto& any = reinterpret_cast<sockaddr_in6&>(storage);
      any.sin6_family = AF_INET6;
      any.sin6_port = htons(static_cast<std::uint16_t>(port));
      length = sizeof any;
    } else {
      auto& any = reinterpret_cast<sockaddr_in&>(storage);
      any.sin_family = AF_INET;
      any.sin_port = htons(static_cast<std::uint16_t>(port));
    }
    if (::bind(socket, reinterpret_cast<sockaddr*>(&storage), length) == 0 && ::listen(socket, 1024) == 0)
      return socket;
    error = errno;
    ::close(socket);
    if (error == EADDRINUSE) break;
  }
  throw UserError(concat("rank 0 cannot listen at port ", port,
                         " for the other ranks: ", std::strerror(error),
                         ". Give every rank another MASTER_PORT, or set MGFL_RENDEZVOUS_PORT."));
}

// Rank 0's port while the other ranks come, and who stands there.
class Door {
 public:
  // `seats[r]` gets the connection with rank r.
  Door(const TorchrunPlace& place, std::vector<int>& seats)
      : place_(place), seats_(seats), missing_(place.size - 1), listener_(listen_at(place.port)) {}
  ~Door() {
    ::close(listener_);
    for (const Guest& guest : guests_)
      if (guest.socket >= 0) ::close(guest.socket);
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Seats those who come, until all have or the deadline passes. UserError for a rank that does not fit.
  void let_in(Clock::time_point deadline) {
    while (missing_ > 0) {
      std::vector<pollfd> waited{{listener_, POLLIN, 0}};
      for (const Guest& guest : guests_) waited.push_back({guest.socket, POLLIN, 0});
      if (::poll(waited.data(), waited.size(), milliseconds_until(deadline)) < 0 && errno != EINTR) return;
      for (std::size_t i = 0; i < guests_.size(); ++i)
        if (waited[i + 1].revents) attend(guests_[i]);
      std::erase_if(guests_, [](const Guest& guest) { return guest.socket < 0; });
      if (waited[0].revents) open();
      if (Clock::now() >= deadline) return;
    }
  }

 private:
  // A connection whose greeting has not come whole; strangers never send one, and are dropped in the end.
  struct Guest {
    int socket;  // -1 once someone else has it, or it is closed
    Hello hello;
    std::size_t bytes = 0;
  };

  void open() {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return;
    tune(socket);
    guests_.push_back({socket, {}});
  }

  // To a guest of whom something has come, be it the end.
  void attend(Guest& guest) {
    const ssize_t got = ::recv(guest.socket, reinterpret_cast<char*>(&guest.hello) + guest.bytes,
                               sizeof(Hello) - guest.bytes, MSG_DONTWAIT);
    if (got > 0) guest.bytes += static_cast<std::size_t>(got);
    const bool gone = got == 0 || (got < 0 && !would_block());
    if (gone || (guest.bytes >= sizeof guest.hello.magic && guest.hello.magic != Hello::magic_of_mgfl))
      ::close(std::exchange(guest.socket, -1));
    else if (guest.bytes == sizeof(Hello))
      seat(std::exchange(guest.socket, -1), guest.hello);
  }

  void seat(int socket, const Hello& hello) {
    if (hello.job != place_.job) {
      answer(socket, Answer::other_job);
      ::close(socket);
      return;
    }
    if (hello.size != place_.size || hello.rank <= 0 || hello.rank >= place_.size)
      turn_away(socket, Answer::other_size,
                concat("a process came to rank 0 as rank ", hello.rank, " of ", hello.size,
                       ", but rank 0 is one of ", place_.size,
                       "; give every rank the same WORLD_SIZE and a RANK of its own below it."));
    int& place = seats_[static_cast<std::size_t>(hello.rank)];
    if (place >= 0)
      turn_away(socket, Answer::rank_taken,
                concat("two processes came to rank 0 as rank ", hello.rank,
                       "; give every process a RANK of its own."));
    place = socket;
    --missing_;
  }

  [[noreturn]] static void turn_away(int socket, Answer why, const std::string& sentence) {
    answer(socket, why);
    ::close(socket);
    throw UserError(sentence);
  }

  const TorchrunPlace& place_;
  std::vector<int>& seats_;
  int missing_;
  int listener_;
  std::vector<Guest> guests_;
};

// One try; -1 and the reason where it does not succeed.
int connect_once(const TorchrunPlace& place, Clock::time_point deadline, std::string& reason) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int status =
          ::getaddrinfo(place.address.c_str(), std::to_string(place.port).c_str(), &hints, &found)) {
    reason = ::gai_strerror(status);
    return -1;
  }
  const auto try_until = std::min(deadline, Clock::now() + std::chrono::seconds(5));
  int connected = -1;
  for (const addrinfo* one = found; one && connected < 0; one = one->ai_next) {
    const int socket = ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) continue;
    int error = ::connect(socket, one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      if (!ready(socket, POLLOUT, try_until))
        error = ETIMEDOUT;
      else
        ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) {
      connected = socket;
    } else {
      reason = std::strerror(error);
      ::close(socket);
    }
  }
  ::freeaddrinfo(found);
  return connected;
}

}  // namespace

bool launched_by_torchrun() { return std::getenv("RANK") && std::getenv("WORLD_SIZE"); }

TorchrunPlace torchrun_place() {
  TorchrunPlace place;
  place.size = number_of("WORLD_SIZE", 1, 1 << 20);
  place.rank = number_of("RANK", 0, place.size - 1);
  place.local_rank = number_of("LOCAL_RANK", 0, place.size - 1);
  place.address = text_of("MASTER_ADDR");
  const int master_port = number_of("MASTER_PORT", 1, max_port);
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  place.port = master_port;
  if (std::getenv("MGFL_RENDEZVOUS_PORT"))
    place.port = number_of("MGFL_RENDEZVOUS_PORT", 1, max_port);
  else if (agent && std::string_view(agent) == "True")
    place.port = master_port < max_port ? master_port + 1 : master_port - 1;
  const char* run = std::getenv("TORCHELASTIC_RUN_ID");
  place.job = fnv1a(concat(master_port, "/", run ? run : ""));
  return place;
}

Rendezvous::Rendezvous(const TorchrunPlace& place, double timeout_seconds)
    : place_(place), timeout_seconds_(timeout_seconds), exceptions_(std::uncaught_exceptions()) {
  check_user(timeout_seconds > 0 && timeout_seconds < 1e9, "the time-out of ", timeout_seconds,
             " s is not usable; give a positive number of seconds.");
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(timeout_seconds));
  sockets_.assign(static_cast<std::size_t>(place_.size), -1);
  if (place_.size == 1) return;
  try {
    if (place_.rank == 0)
      listen_for_others(deadline);
    else
      connect_to_first(deadline);
  } catch (...) {
    close_all();
    throw;
  }
}

Rendezvous::~Rendezvous() {
  if (std::uncaught_exceptions() <= exceptions_)
    for (const int socket : sockets_)
      if (socket >= 0) [[maybe_unused]]
        const ssize_t sent = ::send(socket, &goodbye, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  close_all();
}

void Rendezvous::close_all() {
  for (int& socket : sockets_)
    if (socket >= 0) ::close(std::exchange(socket, -1));
}

void Rendezvous::listen_for_others(Clock::time_point deadline) {
  Door(place_, sockets_).let_in(deadline);
  std::vector<int> absent;
  for (int rank = 1; rank < place_.size; ++rank)
    if (sockets_[static_cast<std::size_t>(rank)] < 0) absent.push_back(rank);
  for (const int socket : sockets_)
    if (socket >= 0) answer(socket, absent.empty() ? Answer::welcome : Answer::incomplete);
  check_run(
      absent.empty(), "rank 0 waited ", timeout_seconds_, " s at port ", place_.port, " for ",
      absent.size() == 1 ? "rank " : "ranks ", some_of(absent), " of ", place_.size,
      ", which did not come. See those ranks' own output; their MASTER_ADDR must lead to this machine.");
}

void Rendezvous::connect_to_first(Clock::time_point deadline) {
  const std::string where = concat(place_.address, ", port ", place_.port);
  const auto check = [&](Answer answer) {
    check_user(answer != Answer::other_job, "rank ", place_.rank, " came to rank 0 of another job at ", where,
               "; give each job a MASTER_PORT of its own.");
    check_user(answer != Answer::other_size, "rank ", place_.rank, " of ", place_.size,
               " does not fit rank 0 at ", where,
               "; give every rank the same WORLD_SIZE and a RANK of its own below it.");
    check_user(answer != Answer::rank_taken, "rank ", place_.rank, " came to rank 0 at ", where,
               " twice; give every process a RANK of its own.");
    check_run(answer != Answer::incomplete, "rank ", place_.rank, " came to rank 0 at ", where,
              ", but not all ranks did; rank 0 says which.");
  };
  std::string reason = "it did not answer";
  auto pause = std::chrono::milliseconds(20);
  const Hello hello{.job = place_.job, .rank = place_.rank, .size = place_.size};
  // Rank 0 gives up at its own deadline, and its answer says more than silence.
  const auto patience = deadline + std::chrono::seconds(2);
  while (Clock::now() < deadline) {
    const int socket = connect_once(place_, deadline, reason);
    if (socket >= 0) {
      tune(socket);
      std::uint32_t code = 0;
      if (send_all(socket, &hello, sizeof hello, deadline) &&
          receive_all(socket, &code, sizeof code, patience)) {
        if (static_cast<Answer>(code) == Answer::welcome) {
          sockets_[0] = socket;
          return;
        }
        ::close(socket);
        check(static_cast<Answer>(code));
        reason = "what answers there is no rank of mgfl";
      } else {
        ::close(socket);
        reason = "the connection ended before all ranks had come";
      }
    }
    std::this_thread::sleep_for(
        std::min<Clock::duration>(pause, std::max(deadline - Clock::now(), Clock::duration{})));
    pause = std::min(pause * 2, std::chrono::milliseconds(500));
  }
  throw RunError(concat("rank ", place_.rank, " waited ", timeout_seconds_, " s for rank 0 at ", where, ": ",
                        reason, ". See rank 0's own output; MASTER_ADDR and MASTER_PORT must lead to it."));
}

void Rendezvous::broadcast(std::span<std::byte> bytes) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(timeout_seconds_));
  for (int rank = 0; rank < place_.size; ++rank) {
    const int socket = sockets_[static_cast<std::size_t>(rank)];
    if (socket < 0) continue;
    const bool done = place_.rank == 0 ? send_all(socket, bytes.data(), bytes.size(), deadline)
                                       : receive_all(socket, bytes.data(), bytes.size(), deadline);
    check_run(done, "rank ", place_.rank, " lost rank ", rank,
              " while the job started; see that rank's own output.");
  }
}

namespace {

void tell(int socket, std::int32_t gone) {
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  if (send_all(socket, &left, 1, deadline)) send_all(socket, &gone, sizeof gone, deadline);
}

}  // namespace

void Rendezvous::announce_end() {
  for (const int socket : sockets_)
    if (socket >= 0) tell(socket, place_.rank);
}

std::optional<Rendezvous::Departure> Rendezvous::departed() {
  for (int rank = 0; rank < place_.size; ++rank) {
    int& socket = sockets_[static_cast<std::size_t>(rank)];
    if (socket < 0) continue;
    char sign = 0;
    const ssize_t got = ::recv(socket, &sign, 1, MSG_DONTWAIT);
    if (got < 0 && would_block()) continue;
    if (got == 1 && sign == goodbye) {
      ::close(std::exchange(socket, -1));
      continue;
    }
    std::int32_t gone = rank;
    const bool told = got == 1 && sign == left &&
                      receive_all(socket, &gone, sizeof gone, Clock::now() + std::chrono::seconds(1));
    if (place_.rank == 0)
      for (const int other : sockets_)
        if (other >= 0 && other != socket) tell(other, gone);
    return Departure{gone, told};
  }
  return std::nullopt;
}

}  // namespace mgfl::parallel

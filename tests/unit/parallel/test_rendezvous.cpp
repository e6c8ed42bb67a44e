// How ranks meet over torchrun's variables and TCP: real processes, each with a connection to rank 0.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "mgfl/base/error.hpp"
#include "policies/parallel/rendezvous.hpp"

using mgfl::concat;
using mgfl::parallel::Rendezvous;
using mgfl::parallel::torchrun_place;
using mgfl::parallel::TorchrunPlace;

namespace {

const std::map<std::string, std::string> whole{{"RANK", "2"},
                                               {"WORLD_SIZE", "4"},
                                               {"LOCAL_RANK", "1"},
                                               {"MASTER_ADDR", "node0"},
                                               {"MASTER_PORT", "29500"}};

// Sets these variables of the rendezvous, and no other.
void set_environment(const std::map<std::string, std::string>& variables) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                           "MGFL_RENDEZVOUS_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"})
    ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

std::string refusal_of(std::map<std::string, std::string> variables) {
  set_environment(variables);
  try {
    torchrun_place();
  } catch (const mgfl::UserError& error) {
    return error.what();
  }
  return "accepted";
}

// A port that was free a moment ago.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t length = sizeof any;
  ::bind(socket, reinterpret_cast<sockaddr*>(&any), length);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&any), &length);
  ::close(socket);
  return ntohs(any.sin_port);
}

// Connects to a port of this machine, as a stranger would; -1 where nobody listens.
int stranger_at(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<std::uint16_t>(port));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&there), sizeof there) == 0) return socket;
  ::close(socket);
  return -1;
}

struct Child {
  pid_t process;
  int output;
};

// A process of its own that runs `body`, and says what it returns or throws.
Child start(std::function<std::string()> body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t process = ::fork();
  if (process == 0) {
    ::close(ends[0]);
    std::string text;
    try {
      text = body();
    } catch (const mgfl::UserError& error) {
      text = concat("user: ", error.what());
    } catch (const mgfl::RunError& error) {
      text = concat("run: ", error.what());
    }
    [[maybe_unused]] const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  return {process, ends[0]};
}

std::string end_of(const Child& child) {
  std::string text;
  char buffer[512];
  for (ssize_t got; (got = ::read(child.output, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(child.output);
  ::waitpid(child.process, nullptr, 0);
  return text;
}

// What each of `places` says that runs `body`.
std::vector<std::string> run(const std::vector<TorchrunPlace>& places,
                             const std::function<std::string(const TorchrunPlace&)>& body) {
  std::vector<Child> children;
  for (const auto& place : places) children.push_back(start([&] { return body(place); }));
  std::vector<std::string> texts;
  for (const Child& child : children) texts.push_back(end_of(child));
  return texts;
}

std::vector<TorchrunPlace> places(int size, int port) {
  std::vector<TorchrunPlace> result;
  for (int rank = 0; rank < size; ++rank)
    result.push_back(
        {.rank = rank, .size = size, .local_rank = rank, .address = "localhost", .port = port, .job = 7});
  return result;
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Waits up to 5 s until a rank is found to have left; "none" where none is.
std::string wait_for_departure(Rendezvous& meeting) {
  for (int tries = 0; tries < 500; ++tries) {
    if (const auto gone = meeting.departed())
      return concat("rank ", gone->rank, gone->told ? " told" : " noticed");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "none";
}

}  // namespace

TEST_CASE("torchrun's variables say a rank's place") {
  set_environment(whole);
  const TorchrunPlace place = torchrun_place();
  CHECK(mgfl::parallel::launched_by_torchrun());
  CHECK(place.rank == 2);
  CHECK(place.size == 4);
  CHECK(place.local_rank == 1);
  CHECK(place.address == "node0");
  CHECK(place.port == 29500);

  auto variables = whole;
  variables["TORCHELASTIC_RUN_ID"] = "another";
  set_environment(variables);
  CHECK(torchrun_place().job != place.job);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // torchrun has the port
  set_environment(variables);
  CHECK(torchrun_place().port == 29501);
  variables["MASTER_PORT"] = "65535";
  set_environment(variables);
  CHECK(torchrun_place().port == 65534);
  variables["MGFL_RENDEZVOUS_PORT"] = "31000";
  set_environment(variables);
  CHECK(torchrun_place().port == 31000);
  set_environment({});
  CHECK_FALSE(mgfl::parallel::launched_by_torchrun());
}

TEST_CASE("a variable that is missing or malformed is named") {
  for (const auto& [name, value] : whole) {
    auto variables = whole;
    variables.erase(name);
    CHECK(refusal_of(variables).find(concat("the environment variable ", name, " is not set")) == 0);
    variables[name] = "";
    CHECK(refusal_of(variables).find(concat("the environment variable ", name, " is not set")) == 0);
    if (name == "MASTER_ADDR") continue;
    for (const char* wrong : {"two", "1x", " 1", "-1", "1.0", "99999999999999999999", "70000000"}) {
      variables[name] = wrong;
      CHECK(refusal_of(variables).find(concat("the environment variable ", name, " is \"", wrong, "\"")) ==
            0);
    }
  }
  auto variables = whole;
  variables["RANK"] = "4";
  CHECK(refusal_of(variables).find("must be a whole number from 0 to 3") != std::string::npos);
  variables = whole;
  variables["MASTER_PORT"] = "65536";
  CHECK(refusal_of(variables).find("from 1 to 65535") != std::string::npos);
  variables = whole;
  variables["MGFL_RENDEZVOUS_PORT"] = "0";
  CHECK(refusal_of(variables).find("the environment variable MGFL_RENDEZVOUS_PORT is \"0\"") == 0);
  set_environment({});
}

TEST_CASE("every process gets the bytes of rank 0, whichever comes first") {
  for (const int size : {1, 2, 5})
    for (const bool first_is_late : {false, true}) {
      const auto said = run(places(size, free_port()), [&](const TorchrunPlace& place) {
        if ((place.rank == 0) == first_is_late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
        Rendezvous meeting(place, 20);
        std::vector<std::byte> bytes(100'000, static_cast<std::byte>(place.rank == 0 ? 42 : 0));
        bytes.back() = static_cast<std::byte>(place.rank == 0 ? 7 : 0);
        meeting.broadcast(bytes);
        return concat(static_cast<int>(bytes.front()), " ", static_cast<int>(bytes.back()));
      });
      for (const auto& text : said) CHECK(text == "42 7");
    }
}

TEST_CASE("who does not come by the deadline is named") {
  auto some = places(4, free_port());
  some.erase(some.begin() + 2);
  std::vector<std::string> said;
  const double seconds = seconds_of([&] {
    said = run(some, [](const TorchrunPlace& place) {
      Rendezvous meeting(place, 1);
      return std::string("met");
    });
  });
  CHECK(seconds < 4);
  CHECK(said[0].find("run: rank 0 waited 1 s at port") == 0);
  CHECK(said[0].find("for rank 2 of 4, which did not come") != std::string::npos);
  for (const int other : {1, 2})
    CHECK(said[static_cast<std::size_t>(other)].find("but not all ranks did") != std::string::npos);

  // Nobody listens; an address that is none.
  auto two = places(2, free_port());
  two.erase(two.begin());
  for (const char* address : {"localhost", "no-such-host.invalid"}) {
    two[0].address = address;
    said = run(two, [](const TorchrunPlace& place) {
      Rendezvous meeting(place, 0.5);
      return std::string("met");
    });
    CHECK(said[0].find(concat("run: rank 1 waited 0.5 s for rank 0 at ", address)) == 0);
  }
}

TEST_CASE("ranks that do not fit together are told so") {
  const auto meet = [](const TorchrunPlace& place) {
    Rendezvous meeting(place, 3);
    return std::string("met");
  };
  auto twice = places(3, free_port());
  twice[2].rank = 1;
  auto said = run(twice, meet);
  CHECK(said[0].find("user: two processes came to rank 0 as rank 1") == 0);

  auto sizes = places(2, free_port());
  sizes[1].size = 3;
  said = run(sizes, meet);
  CHECK(said[0].find("user: a process came to rank 0 as rank 1 of 3, but rank 0 is one of 2") == 0);
  CHECK(said[1].find("user: rank 1 of 3 does not fit rank 0") == 0);

  auto jobs = places(2, free_port());
  jobs[1].job = 8;
  jobs.push_back(jobs[1]);
  jobs[2].job = 7;  // the right one comes as well, after the stranger, as rank 0 waits no longer than that
  said = run(jobs, [&](const TorchrunPlace& place) {
    if (place.rank == 1 && place.job == 7) std::this_thread::sleep_for(std::chrono::seconds(1));
    Rendezvous meeting(place, 10);
    return std::string("met");
  });
  CHECK(said[0] == "met");
  CHECK(said[1].find("user: rank 1 came to rank 0 of another job") == 0);
  CHECK(said[2] == "met");
}

TEST_CASE("a port that another program has, and strangers at the door") {
  const int port = free_port();
  const int taken = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<std::uint16_t>(port));
  if (::bind(taken, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 && ::listen(taken, 1) == 0) {
    const auto first = places(2, port)[0];
    CHECK_THROWS_WITH_AS(Rendezvous(first, 1),
                         doctest::Contains(concat("cannot listen at port ", port).c_str()), mgfl::UserError);
  }
  ::close(taken);

  const auto two = places(2, free_port());
  const Child first = start([&] {
    Rendezvous meeting(two[0], 10);
    return std::string("met");
  });
  int silent = -1, rude = -1;
  while ((silent = stranger_at(two[0].port)) < 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  rude = stranger_at(two[0].port);
  const char request[] = "GET / HTTP/1.1\r\n\r\n";
  CHECK(::send(rude, request, sizeof request, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof request));
  const Child second = start([&] {
    Rendezvous meeting(two[1], 10);
    return std::string("met");
  });
  CHECK(end_of(first) == "met");
  CHECK(end_of(second) == "met");
  ::close(silent);
  ::close(rude);
}

TEST_CASE("a rank that leaves without a goodbye is noticed by rank 0, and told to all") {
  const auto said = run(places(4, free_port()), [](const TorchrunPlace& place) {
    Rendezvous meeting(place, 10);
    if (place.rank == 2) ::raise(SIGKILL);
    return wait_for_departure(meeting);
  });
  CHECK(said[0] == "rank 2 noticed");
  CHECK(said[1] == "rank 2 told");
  CHECK(said[2].empty());
  CHECK(said[3] == "rank 2 told");
}

TEST_CASE("who ends the job and says why is missed by nobody aloud") {
  for (const int ending : {0, 1}) {
    const auto said = run(places(3, free_port()), [&](const TorchrunPlace& place) {
      Rendezvous meeting(place, 10);
      if (place.rank == ending) {
        meeting.announce_end();
        ::_exit(2);
      }
      return wait_for_departure(meeting);
    });
    for (int rank = 0; rank < 3; ++rank)
      if (rank != ending) CHECK(said[static_cast<std::size_t>(rank)] == concat("rank ", ending, " told"));
  }
}

TEST_CASE("rank 0 is missed by all; an exception is no goodbye; a goodbye is no departure") {
  auto said = run(places(3, free_port()), [](const TorchrunPlace& place) {
    Rendezvous meeting(place, 10);
    if (place.rank == 0) ::raise(SIGKILL);
    return wait_for_departure(meeting);
  });
  CHECK(said[1] == "rank 0 noticed");
  CHECK(said[2] == "rank 0 noticed");

  said = run(places(2, free_port()), [](const TorchrunPlace& place) {
    Rendezvous meeting(place, 10);
    if (place.rank == 1) throw mgfl::RunError("its disk is full");
    return wait_for_departure(meeting);
  });
  CHECK(said[0] == "rank 1 noticed");
  CHECK(said[1] == "run: its disk is full");

  said = run(places(3, free_port()), [](const TorchrunPlace& place) {
    Rendezvous meeting(place, 10);
    if (place.rank == 1) return std::string("left");
    for (int tries = 0; tries < 30; ++tries) {
      if (meeting.departed()) return std::string("noticed");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return std::string("nobody missed");
  });
  CHECK(said[0] == "nobody missed");
  CHECK(said[2] == "nobody missed");
}

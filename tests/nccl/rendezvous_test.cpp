// How NCCL ranks find each other: the environment, and the meeting over TCP. Needs no GPU.
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/nccl/environment.hpp>
#include <tessera/nccl/tcp_bootstrap.hpp>

namespace ts = tessera;
using namespace std::chrono_literals;
using namespace tessera::detail;

namespace {

using Bytes = std::array<std::byte, 136>;
using Environment = std::map<std::string, std::string>;

Bytes pattern() {
  Bytes bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

int free_port() {
  std::string why;
  const TcpSocket socket = tcp_listen(0, true, false, why);
  REQUIRE_MESSAGE(socket, why);
  return tcp_port(socket);
}

BootstrapPlace place(int port, int rank, int size, std::chrono::milliseconds timeout = 20s) {
  return {"127.0.0.1", port, rank, size, 42, timeout};
}

// body(rank) on a thread each; what each threw.
std::vector<std::string> on_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::string> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const ts::Error& error) {
        thrown[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

LaunchEnvironment read(const Environment& environment) {
  return read_launch_environment([&](const char* name) -> const char* {
    const auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  });
}

std::string refusal(const Environment& environment) {
  try {
    read(environment);
  } catch (const ts::Error& error) {
    return error.what();
  }
  return "";
}

const Environment kGood{{"RANK", "3"},
                        {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},
                        {"MASTER_ADDR", "node0"},
                        {"MASTER_PORT", "29500"}};

Environment with(const std::string& name, const char* value) {
  Environment changed = kGood;
  changed.erase(name);
  if (value) changed[name] = value;
  return changed;
}

}  // namespace

TEST_CASE("rank 0's bytes reach every rank, whoever comes first") {
  for (int size : {1, 2, 3, 9, 64}) {
    CAPTURE(size);
    const int port = free_port();
    std::vector<Bytes> got(static_cast<std::size_t>(size));
    got[0] = pattern();
    const auto thrown = on_threads(size, [&](int r) {
      if (r == 0 && size == 3) std::this_thread::sleep_for(300ms);
      if (r != 0 && size == 9) std::this_thread::sleep_for(20ms * r);
      TcpBootstrap::share(place(port, r, size), got[static_cast<std::size_t>(r)]);
    });
    for (const std::string& text : thrown) CHECK(text == "");
    for (const Bytes& bytes : got) CHECK(bytes == pattern());
  }
}

TEST_CASE("names of this host, over IPv4 and IPv6") {
  std::string why;
  for (const char* address : {"localhost", "127.0.0.1", "::1"}) {
    if (std::string(address) == "::1" && !tcp_listen(0, true, true, why)) continue;
    const int port = free_port();
    Bytes mine = pattern(), theirs{};
    const auto thrown = on_threads(2, [&](int r) {
      BootstrapPlace at = place(port, r, 2);
      at.address = address;
      TcpBootstrap::share(at, r == 0 ? mine : theirs);
    });
    CHECK(thrown == std::vector<std::string>(2));
    CHECK(theirs == mine);
  }
}

TEST_CASE("meetings one after the other at one port keep apart") {
  const int port = free_port();
  std::vector<std::vector<int>> got(3, std::vector<int>(20, -1));
  const auto thrown = on_threads(3, [&](int r) {
    for (int meeting = 0; meeting < 20; ++meeting) {
      int value = r == 0 ? meeting * 100 : 0;
      BootstrapPlace at = place(port, r, 3);
      at.job = static_cast<std::uint64_t>(meeting);
      TcpBootstrap::share(at, std::as_writable_bytes(std::span(&value, 1)));
      got[static_cast<std::size_t>(r)][static_cast<std::size_t>(meeting)] = value;
    }
  });
  CHECK(thrown == std::vector<std::string>(3));
  for (const auto& values : got) {
    for (int meeting = 0; meeting < 20; ++meeting) {
      CHECK(values[static_cast<std::size_t>(meeting)] == meeting * 100);
    }
  }
}

TEST_CASE("a rank that stays away is named to all who came") {
  const int port = free_port();
  const auto thrown = on_threads(4, [&](int r) {
    if (r == 2) return;
    Bytes bytes{};
    TcpBootstrap::share(place(port, r, 4, r == 0 ? 500ms : 10000ms), bytes);
  });
  for (int r : {0, 1, 3}) {
    const std::string& text = thrown[static_cast<std::size_t>(r)];
    CHECK(contains(text, "rank " + std::to_string(r) +
                             ", bootstrap: rank 0 waited 500 ms at "
                             "127.0.0.1:" +
                             std::to_string(port) + " for rank(s) 2, which"));
  }
}

TEST_CASE("without rank 0 the others say where they looked, and what was in the way") {
  const int port = free_port();
  Bytes bytes{};
  const auto begin = std::chrono::steady_clock::now();
  const auto thrown = on_threads(3, [&](int r) {
    if (r != 0) TcpBootstrap::share(place(port, r, 3, 300ms), bytes);
  });
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(contains(thrown[2],
                 "rank 2, bootstrap: rank 2 did not get the group's id from rank 0 at "
                 "127.0.0.1:" +
                     std::to_string(port) +
                     " within 300 ms (Connection "
                     "refused): is rank 0 running"));
  CHECK(took >= 300ms);
  CHECK(took < 5s);
  BootstrapPlace nowhere = place(port, 1, 2, 200ms);
  nowhere.address = "no-such-host.invalid";
  CHECK_THROWS_WITH_AS(TcpBootstrap::share(nowhere, bytes),
                       doctest::Contains("the address cannot be resolved"), ts::CommunicatorError);
}

TEST_CASE("ranks that disagree about the group are told so") {
  SUBCASE("its size") {
    const int port = free_port();
    const auto thrown = on_threads(2, [&](int r) {
      Bytes bytes{};
      TcpBootstrap::share(place(port, r, r == 0 ? 2 : 3), bytes);
    });
    for (const std::string& text : thrown) {
      CHECK(contains(text, "rank 1 says that the group has 3 ranks, rank 0 that it has 2"));
    }
  }
  SUBCASE("a rank twice") {
    const int port = free_port();
    const auto thrown = on_threads(3, [&](int r) {
      Bytes bytes{};
      TcpBootstrap::share(place(port, r == 0 ? 0 : 1, 3), bytes);
    });
    for (const std::string& text : thrown) {
      CHECK(contains(text, "two processes say that they are rank 1"));
    }
  }
  SUBCASE("the bytes") {
    const int port = free_port();
    const auto thrown = on_threads(2, [&](int r) {
      std::vector<std::byte> bytes(r == 0 ? 8 : 16);
      TcpBootstrap::share(place(port, r, 2), bytes);
    });
    for (const std::string& text : thrown) {
      CHECK(contains(text, "rank 1 expects 16 bytes where rank 0 has 8"));
    }
  }
  SUBCASE("more bytes than can be sent") {
    const int port = free_port();
    const auto thrown = on_threads(2, [&](int r) {
      std::vector<std::byte> bytes(100000);
      TcpBootstrap::share(place(port, r, 2), bytes);
    });
    for (const std::string& text : thrown) {
      CHECK(contains(text, "rank 0 has 100000 bytes for the others, but at most 65536"));
    }
  }
}

TEST_CASE("strangers, and ranks of another job, do not disturb the meeting") {
  const int port = free_port();
  std::vector<TcpSocket> strangers;
  Bytes mine = pattern(), theirs{}, others{};
  const auto thrown = on_threads(4, [&](int r) {
    if (r == 2) {  // garbage, silence, and one that hangs up
      std::string why;
      for (int kind = 0; kind < 3; ++kind) {
        TcpSocket socket;
        while (!socket) {
          socket = tcp_connect("127.0.0.1", port, TcpClock::now() + 5s, why);
          if (!socket) std::this_thread::sleep_for(10ms);
        }
        const std::vector<std::byte> garbage(200, std::byte{0x47});
        if (kind == 0) tcp_send(socket, garbage, TcpClock::now() + 1s, why);
        if (kind != 2) strangers.push_back(std::move(socket));
      }
    } else if (r == 3) {
      BootstrapPlace at = place(port, 1, 2, 600ms);
      at.job = 43;
      TcpBootstrap::share(at, others);
    } else {
      if (r == 1) std::this_thread::sleep_for(400ms);
      TcpBootstrap::share(place(port, r, 2), r == 0 ? mine : theirs);
    }
  });
  CHECK(thrown[0] == "");
  CHECK(thrown[1] == "");
  CHECK(theirs == mine);
  CHECK(contains(thrown[3], "within 600 ms"));
}

TEST_CASE("a rank that went away and came back has its place") {
  const int port = free_port();
  Bytes mine = pattern(), one{}, two{};
  const auto thrown = on_threads(3, [&](int r) {
    if (r == 1) {
      std::string why;
      TcpSocket socket;
      while (!socket) socket = tcp_connect("127.0.0.1", port, TcpClock::now() + 5s, why);
      const BootstrapHello hello{BootstrapHello::kMagic, 42, 1, 3, sizeof(Bytes)};
      tcp_send(socket, std::as_bytes(std::span(&hello, 1)), TcpClock::now() + 1s, why);
      socket = TcpSocket();
    }
    if (r == 2) std::this_thread::sleep_for(300ms);
    Bytes& bytes = r == 0 ? mine : r == 1 ? one : two;
    TcpBootstrap::share(place(port, r, 3), bytes);
  });
  CHECK(thrown == std::vector<std::string>(3));
  CHECK(one == mine);
  CHECK(two == mine);
}

TEST_CASE("a rank that asked and was killed is missed by rank 0 before it answers the others") {
  const int port = free_port();
  const auto thrown = on_threads(3, [&](int r) {
    if (r == 1) {
      std::string why;
      TcpSocket socket;
      while (!socket) socket = tcp_connect("127.0.0.1", port, TcpClock::now() + 5s, why);
      const BootstrapHello hello{BootstrapHello::kMagic, 42, 1, 3, sizeof(Bytes)};
      tcp_send(socket, std::as_bytes(std::span(&hello, 1)), TcpClock::now() + 1s, why);
      std::this_thread::sleep_for(100ms);
      return;
    }
    if (r == 2) std::this_thread::sleep_for(300ms);
    Bytes bytes{};
    TcpBootstrap::share(place(port, r, 3, r == 0 ? 600ms : 10000ms), bytes);
  });
  for (int r : {0, 2}) {
    const std::string& text = thrown[static_cast<std::size_t>(r)];
    CHECK(contains(text,
                   "for rank(s) 1, which did not ask for the group's id; rank 1 did and went "
                   "away"));
  }
}

TEST_CASE("places that are none, and time-outs that are none, are refused at once") {
  Bytes bytes{};
  for (const auto& [rank, size] : {std::pair(-1, 2), {2, 2}, {7, 2}, {0, 0}, {0, -3}, {1, 1}}) {
    CHECK_THROWS_WITH_AS(TcpBootstrap::share(place(1, rank, size), bytes),
                         doctest::Contains("is no place in a group of"), ts::Error);
  }
  for (const auto bad : {0ms, -5ms}) {
    CHECK_THROWS_WITH_AS(TcpBootstrap::share(place(1, 0, 2, bad), bytes),
                         doctest::Contains("must be positive"), ts::Error);
  }
  const int port = free_port();
  Bytes mine = pattern(), theirs{};
  const auto thrown = on_threads(2, [&](int r) {
    TcpBootstrap::share(place(port, r, 2, std::chrono::milliseconds::max()),
                        r == 0 ? mine : theirs);
  });
  CHECK(thrown == std::vector<std::string>(2));
  CHECK(theirs == mine);
}

#if !defined(__SANITIZE_ADDRESS__)  // whose check of virtual calls looks at memory through a pipe
TEST_CASE("rank 0 without a descriptor for who comes: it does not spin, and says what is wrong") {
  const int port = free_port();
  std::string zero;
  std::thread rank0([&] {
    Bytes bytes{};
    try {
      TcpBootstrap::share(place(port, 0, 2, 700ms), bytes);
    } catch (const ts::Error& error) {
      zero = error.what();
    }
  });
  std::this_thread::sleep_for(100ms);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const TcpSocket caller(::socket(AF_INET, SOCK_STREAM, 0));
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit none{3, limit.rlim_max};
  const std::clock_t before = std::clock();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const int connected = ::connect(caller.descriptor(), reinterpret_cast<sockaddr*>(&at), sizeof at);
  rank0.join();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(connected == 0);
  CHECK(std::clock() - before < CLOCKS_PER_SEC / 4);
  CHECK(contains(zero, "it could not accept connections (Too many open files)"));
}
#endif

TEST_CASE("a port that another holds is waited for, and named") {
  std::string why;
  TcpSocket holder = tcp_listen(0, true, false, why);
  const int port = tcp_port(holder);
  Bytes mine = pattern(), theirs{};
  CHECK_THROWS_WITH_AS(
      TcpBootstrap::share(place(port, 0, 2, 200ms), mine),
      doctest::Contains(("could not listen on port " + std::to_string(port)).c_str()),
      ts::CommunicatorError);
  const auto thrown = on_threads(3, [&](int r) {
    if (r == 2) {
      std::this_thread::sleep_for(200ms);
      holder = TcpSocket();
    } else {
      TcpBootstrap::share(place(port, r, 2), r == 0 ? mine : theirs);
    }
  });
  CHECK(thrown == std::vector<std::string>(3));
  CHECK(theirs == mine);
  CHECK_THROWS_WITH_AS(TcpBootstrap::share(place(0, 0, 2), mine),
                       doctest::Contains("cannot meet at port 0"), ts::Error);
}

TEST_CASE("what a launcher says") {
  const LaunchEnvironment four = read(kGood);
  CHECK(four.rank == 3);
  CHECK(four.size == 8);
  CHECK(four.local_rank == 1);
  CHECK(four.address == "node0");
  CHECK(four.port == 29500);
  CHECK(bootstrap_port(four, 0) == 29501);
  CHECK(bootstrap_port(four, 77) == 77);

  CHECK(read({}).size == 1);
  CHECK(read({{"LOCAL_RANK", "2"}}).local_rank == 2);
  CHECK(read({{"RANK", "0"}}).size == 1);
  CHECK(read({{"WORLD_SIZE", "1"}}).rank == 0);
  CHECK(read({{"WORLD_SIZE", "1"}, {"RANK", "0"}}).size == 1);

  Environment restarted = kGood;
  restarted["TORCHELASTIC_RESTART_COUNT"] = "1";
  CHECK(read(restarted).job != four.job);
  CHECK(read(kGood).job == four.job);
}

TEST_CASE("mpirun's environment: Open MPI's and MPICH's names, one host without an address") {
  const Environment open_mpi{{"OMPI_COMM_WORLD_RANK", "2"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                             {"PMIX_NAMESPACE", "job1"}};
  const LaunchEnvironment here = read(open_mpi);
  CHECK(here.rank == 2);
  CHECK(here.size == 4);
  CHECK(here.local_rank == 2);
  CHECK(here.address == "127.0.0.1");
  CHECK(here.port == 29500);
  Environment other = open_mpi;
  other["PMIX_NAMESPACE"] = "job2";
  CHECK(read(other).job != here.job);
  other["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  CHECK(contains(refusal(other),
                 "OMPI_COMM_WORLD_SIZE is 4, but the environment variable "
                 "MASTER_ADDR is not set"));
  other["MASTER_ADDR"] = "node7";
  other["MASTER_PORT"] = "1234";
  CHECK(read(other).address == "node7");
  CHECK(read(other).port == 1234);
  const LaunchEnvironment mpich = read({{"PMI_RANK", "1"},
                                        {"PMI_SIZE", "2"},
                                        {"MPI_LOCALRANKID", "1"},
                                        {"MPI_LOCALNRANKS", "2"},
                                        {"MASTER_PORT", "4321"}});
  CHECK(mpich.rank == 1);
  CHECK(mpich.size == 2);
  CHECK(mpich.local_rank == 1);
  CHECK(mpich.address == "127.0.0.1");
  // It does not say which run it is: two at the same port would take each other's ranks.
  CHECK(contains(refusal({{"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"},
                          {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "2"}}),
                 "MASTER_PORT is not set"));
  // A launcher's own names count before those of an MPI around it.
  Environment both = kGood;
  both.insert(open_mpi.begin(), open_mpi.end());
  CHECK(read(both).size == 8);
  Environment left_over = open_mpi;
  left_over["WORLD_SIZE"] = "1";
  CHECK(contains(refusal(left_over),
                 "WORLD_SIZE is 1, but OMPI_COMM_WORLD_SIZE, of mpirun of Open "
                 "MPI, is 4"));
  Environment late = open_mpi;
  late["OMPI_COMM_WORLD_RANK"] = "4";
  CHECK(contains(refusal(late), "OMPI_COMM_WORLD_RANK is 4, but OMPI_COMM_WORLD_SIZE is 4"));
}

TEST_CASE("an environment that is wrong ends in one sentence") {
  CHECK(contains(refusal(with("RANK", "8")),
                 "RANK is 8, but WORLD_SIZE is 8: ranks count from 0 to 7"));
  for (const char* bad : {"three", "3x", " 3", "3.0", "0x3", "+3"}) {
    CAPTURE(bad);
    CHECK(contains(refusal(with("RANK", bad)), "which is not a whole number"));
  }
  for (const char* bad : {"99999999999", "-99999999999"}) {
    CHECK(contains(refusal(with("RANK", bad)),
                   std::string("RANK is ") + bad + ", but it must be 0 to 2147483647"));
  }
  CHECK(contains(refusal(with("RANK", "-1")), "RANK is -1, but it must be 0 or more"));
  CHECK(contains(refusal(with("WORLD_SIZE", "0")), "WORLD_SIZE is 0, but it must be 1 or more"));
  CHECK(contains(refusal(with("WORLD_SIZE", "many")), "WORLD_SIZE is 'many'"));
  CHECK(contains(refusal(with("LOCAL_RANK", "-2")), "LOCAL_RANK is -2"));
  CHECK(contains(refusal(with("MASTER_PORT", "0")), "MASTER_PORT is 0, but it must be 1 to 65535"));
  CHECK(contains(refusal(with("MASTER_PORT", "70000")), "MASTER_PORT is 70000"));
  for (const char* name : {"RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    for (const char* value : {static_cast<const char*>(nullptr), ""}) {
      CAPTURE(name);
      CHECK(contains(
          refusal(with(name, value)),
          std::string("WORLD_SIZE is 8, but the environment variable ") + name + " is not set"));
    }
  }
  CHECK(contains(refusal(with("WORLD_SIZE", nullptr)), "RANK is 3, but WORLD_SIZE is not set"));
  CHECK_THROWS_WITH_AS(bootstrap_port(read(with("MASTER_PORT", "65535")), 0),
                       doctest::Contains("MASTER_PORT is 65535"), ts::Error);
  check_local_device(1, 2);
  CHECK_THROWS_WITH_AS(check_local_device(2, 2),
                       doctest::Contains("LOCAL_RANK is 2, but this process sees 2 CUDA devices"),
                       ts::Error);
  CHECK_THROWS_WITH_AS(check_local_device(0, 0), doctest::Contains("sees 0 CUDA devices"),
                       ts::Error);
}

#include "spawn.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "input_error.hpp"

namespace llama {
namespace {

constexpr auto kGrace = std::chrono::seconds(10);

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

/// A port of this machine that nobody listens on now.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) fail("making a socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool found = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(socket);
  if (!found) fail("looking for a port");
  return ntohs(address.sin_port);
}

void set(const char* name, std::size_t value) { ::setenv(name, std::to_string(value).c_str(), 1); }

void become_rank(std::size_t rank, std::size_t ranks, int port, pid_t parent) {
  // Not to be left behind where the parent is killed, which may have happened already.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  set("RANK", rank);
  set("WORLD_SIZE", ranks);
  set("LOCAL_RANK", rank);
  set("LOCAL_WORLD_SIZE", ranks);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  set("MASTER_PORT", static_cast<std::size_t>(port - 1));  // ranks meet at the one after it
}

/// What a shell would call the status.
int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int wait_for(std::vector<pid_t> running) {
  using Clock = std::chrono::steady_clock;
  int result = 0;
  Clock::time_point deadline = Clock::time_point::max();
  const auto tell_all = [&](int signal) {
    for (const pid_t pid : running) ::kill(pid, signal);
  };
  while (!running.empty()) {
    int status = 0;
    // One by one: the process may have other children, from before it became this program.
    pid_t ended = 0;
    for (std::size_t i = 0; i < running.size() && ended == 0; ++i) {
      ended = ::waitpid(running[i], &status, WNOHANG);
      if (ended < 0) {  // somebody else has waited for it
        ended = running[i];
        status = 1 << 8;
      }
    }
    if (ended > 0) {
      std::erase(running, ended);
      const int code = exit_code(status);
      if (code == 0 || result != 0) continue;
      result = code;
      if (!running.empty()) {
        std::fprintf(stderr, "llama: a rank ended with status %d: the others are ended.\n", code);
      }
      // They have a moment to say what they know of it.
      deadline = Clock::now() + kGrace;
      std::this_thread::sleep_for(std::chrono::seconds(1));
      tell_all(SIGTERM);
      continue;
    }
    if (Clock::now() > deadline) tell_all(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return result;
}

}  // namespace

std::optional<int> spawn_ranks(std::size_t ranks) {
  const int port = free_port();
  const pid_t parent = ::getpid();
  ::signal(SIGCHLD, SIG_DFL);  // ignored, children would leave no status
  std::vector<pid_t> running;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      become_rank(rank, ranks, port, parent);
      return std::nullopt;
    }
    if (pid < 0) {
      for (const pid_t other : running) ::kill(other, SIGKILL);
      fail("starting a rank");
    }
    running.push_back(pid);
  }
  return wait_for(std::move(running));
}

}  // namespace llama

// Sockets that never wait past a deadline: what the ranks' first meeting is made of.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::detail {

using TcpClock = std::chrono::steady_clock;

/// A non-blocking socket, closed at its end.
class TcpSocket {
 public:
  TcpSocket() = default;
  explicit TcpSocket(int descriptor) : descriptor_(descriptor) {}
  TcpSocket(TcpSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~TcpSocket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// Milliseconds for poll(): rounded up, so that a wait does not end just before its deadline.
inline int milliseconds_until(TcpClock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - TcpClock::now()).count();
  return left <= 0 ? 0 : left > INT_MAX ? INT_MAX : static_cast<int>(left);
}

/// True once `events` or an error can be had from the socket; false at the deadline.
inline bool tcp_wait(const TcpSocket& socket, short events, TcpClock::time_point deadline) {
  for (;;) {
    pollfd entry{socket.descriptor(), events, 0};
    const int ready = ::poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno == EINTR) continue;
    return false;
  }
}

/// What one attempt to receive gave: bytes, or one of these.
enum : long { kTcpNothingYet = -1, kTcpClosed = -2 };

/// Bytes that are there, without waiting.
inline long tcp_receive_some(const TcpSocket& socket, std::span<std::byte> into) {
  for (;;) {
    const ssize_t got = ::recv(socket.descriptor(), into.data(), into.size(), 0);
    if (got > 0) return static_cast<long>(got);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return kTcpNothingYet;
    return kTcpClosed;
  }
}

/// Fills `into`. On false, `why` says what was in the way.
inline bool tcp_receive(const TcpSocket& socket, std::span<std::byte> into,
                        TcpClock::time_point deadline, std::string& why) {
  while (!into.empty()) {
    const long got = tcp_receive_some(socket, into);
    if (got > 0) {
      into = into.subspan(static_cast<std::size_t>(got));
    } else if (got == kTcpClosed) {
      why = "the connection was closed";
      return false;
    } else if (!tcp_wait(socket, POLLIN, deadline)) {
      why = "connected, but there was no answer";
      return false;
    }
  }
  return true;
}

/// Sends all of `from`. On false, `why` says what was in the way.
inline bool tcp_send(const TcpSocket& socket, std::span<const std::byte> from,
                     TcpClock::time_point deadline, std::string& why) {
  while (!from.empty()) {
    // No SIGPIPE where the other end has gone: that is an error like any other.
    const ssize_t sent = ::send(socket.descriptor(), from.data(), from.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      from = from.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!tcp_wait(socket, POLLOUT, deadline)) {
        why = "the other end does not take what is sent";
        return false;
      }
    } else if (errno != EINTR) {
      why = std::strerror(errno);
      return false;
    }
  }
  return true;
}

/// Connects to the first of the address's numbers that answers. On an empty socket, `why` says what
/// the last one said.
inline TcpSocket tcp_connect(const std::string& address, int port, TcpClock::time_point deadline,
                             std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    why = std::string("the address cannot be resolved: ") + ::gai_strerror(error);
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    TcpSocket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) {
      why = std::strerror(errno);
      continue;
    }
    int result = 0;
    if (::connect(socket.descriptor(), at->ai_addr, at->ai_addrlen) != 0) {
      result = errno;
      if (result == EINPROGRESS || result == EINTR) {
        if (!tcp_wait(socket, POLLOUT, deadline)) {
          why = "the connection was not accepted";
          continue;
        }
        socklen_t size = sizeof result;
        ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &result, &size);
      }
    }
    if (result == 0) return socket;
    why = std::strerror(result);
  }
  return {};
}

/// True for the names of this host that no other host can reach.
inline bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// Listens on the port, on every interface, or on the loopback interface alone. On an empty socket,
/// `why` says what was in the way. Port 0 takes any: see tcp_port.
inline TcpSocket tcp_listen(int port, bool loopback, bool ipv6, std::string& why) {
  const int on = 1, off = 0;
  TcpSocket socket(
      ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    why = std::strerror(errno);
    return {};
  }
  ::setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 six{};
  sockaddr_in four{};
  const sockaddr* at = reinterpret_cast<const sockaddr*>(&four);
  socklen_t size = sizeof four;
  if (ipv6) {
    ::setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<std::uint16_t>(port));
    six.sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    at = reinterpret_cast<const sockaddr*>(&six);
    size = sizeof six;
  } else {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<std::uint16_t>(port));
    four.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  }
  if (::bind(socket.descriptor(), at, size) != 0 || ::listen(socket.descriptor(), 1024) != 0) {
    why = std::strerror(errno);
    return {};
  }
  return socket;
}

/// The port that a listening socket has, 0 where that cannot be told.
inline int tcp_port(const TcpSocket& socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  if (at.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&at)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&at)->sin_port);
}

/// Takes one connection that waits, without waiting for one. On an empty socket `why` says what was
/// in the way, or is empty where none waits.
inline TcpSocket tcp_accept(const TcpSocket& listening, std::string& why) {
  for (;;) {
    TcpSocket socket(
        ::accept4(listening.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    // One that was given up while it waited is passed over.
    if (!socket && (errno == EINTR || errno == ECONNABORTED || errno == EPROTO)) continue;
    why = socket || errno == EAGAIN ? "" : std::strerror(errno);
    return socket;
  }
}

}  // namespace tessera::detail

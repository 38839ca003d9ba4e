// How the first bytes of a group, which say where its ranks meet, come from rank 0 to the others.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/timeout.hpp"
#include "tessera/error.hpp"
#include "tessera/nccl/tcp_socket.hpp"

namespace tessera::detail {

/// Where rank 0 is, and who asks.
struct BootstrapPlace {
  std::string address;  ///< of rank 0's host
  int port = 0;
  int rank = 0;
  int size = 1;
  /// Ranks of another job, or of another meeting of this job, are let wait and not answered.
  std::uint64_t job = 0;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

/// What a rank says first, and what rank 0 answers.
struct BootstrapHello {
  static constexpr std::uint64_t kMagic = 0x7465737365726131;  // "tessera1"
  std::uint64_t magic = kMagic;
  std::uint64_t job = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint64_t bytes = 0;  ///< that it expects
};
struct BootstrapAnswer {
  static constexpr std::uint64_t kMagic = 0x7465737365726132;
  static constexpr std::uint64_t kLongest = 1 << 16;
  std::uint64_t magic = kMagic;
  std::uint32_t refused = 0;  ///< 1: what follows is the text of the error
  std::uint32_t bytes = 0;    ///< that follow
};

/// Carries `payload` from rank 0 to every other rank. All ranks call it, within the time-out; on
/// an error every rank that can be reached throws CommunicatorError with the reason.
class TcpBootstrap {
 public:
  static void share(const BootstrapPlace& place, std::span<std::byte> payload) {
    if (place.size < 1 || place.rank < 0 || place.rank >= place.size) {
      fail("tessera: rank ", place.rank, " is no place in a group of ", place.size,
           " ranks, which cannot meet");
    }
    if (place.size == 1) return;
    if (place.port < 1 || place.port > 65535) {
      fail("tessera: the ranks cannot meet at port ", place.port, ": it must be 1 to 65535");
    }
    const TcpBootstrap meeting(place);
    place.rank == 0 ? meeting.give(payload) : meeting.ask(payload);
  }

 private:
  struct Guest {
    TcpSocket socket;
    std::array<std::byte, sizeof(BootstrapHello)> hello{};
    std::size_t got = 0;
    int rank = -1;  ///< once it has said so
  };

  explicit TcpBootstrap(const BootstrapPlace& place) : place_(place) {
    place_.timeout = checked_timeout(place.timeout, "the ranks' first meeting");
    deadline_ = TcpClock::now() + place_.timeout;
  }

  [[noreturn]] void give_up(std::string_view problem) const {
    throw CommunicatorError(place_.rank, "", "bootstrap", problem);
  }
  std::string where() const { return concat(place_.address, ":", place_.port); }
  std::string waited() const { return concat(place_.timeout.count(), " ms"); }

  // Rank 0. Nobody is answered before all are here, so that all get the id or the same reason.
  void give(std::span<const std::byte> payload) const {
    const TcpSocket listening = listen();
    std::vector<Guest> guests;
    std::string problem, unaccepted, departed;
    while (problem.empty() && count_known(guests) < place_.size - 1) {
      if (!wait_for_any(listening, guests)) {
        problem = concat("rank 0 waited ", waited(), " at ", where(), " for rank(s) ",
                         absent(guests), ", which did not ask for the group's id", departed);
        if (!unaccepted.empty()) {
          problem += concat("; it could not accept connections (", unaccepted, ")");
        }
        break;
      }
      while (TcpSocket arrived = tcp_accept(listening, unaccepted)) {
        guests.push_back({});
        guests.back().socket = std::move(arrived);
      }
      // Such as too many open files: poll() would report the one who waits again at once.
      if (!unaccepted.empty()) pause();
      for (std::size_t i = 0; i < guests.size() && problem.empty(); ++i) {
        if (guests[i].rank < 0) problem = hear(guests, i, payload.size());
      }
      for (Guest& guest : guests) see_whether_here(guest, departed);
      std::erase_if(guests, [](const Guest& guest) { return !guest.socket; });
    }
    if (problem.empty() && payload.size() > BootstrapAnswer::kLongest) {
      problem = concat("rank 0 has ", payload.size(), " bytes for the others, but at most ",
                       BootstrapAnswer::kLongest, " can be sent");
    }
    answer(guests, payload, problem);
    if (!problem.empty()) give_up(problem);
  }

  TcpSocket listen() const {
    const bool loopback = is_loopback(place_.address);
    std::string why;
    do {
      // Both kinds of addresses through one socket where the host has them.
      if (!loopback || place_.address == "::1") {
        TcpSocket both = tcp_listen(place_.port, loopback, true, why);
        if (both) return both;
      }
      if (place_.address != "::1") {
        TcpSocket four = tcp_listen(place_.port, loopback, false, why);
        if (four) return four;
      }
      pause();  // it may be the last run's, which is about to end
    } while (TcpClock::now() < deadline_);
    give_up(concat("rank 0 could not listen on port ", place_.port, " within ", waited(), " (", why,
                   "): choose a port that is free"));
  }

  bool wait_for_any(const TcpSocket& listening, const std::vector<Guest>& guests) const {
    std::vector<pollfd> entries{{listening.descriptor(), POLLIN, 0}};
    for (const Guest& guest : guests) entries.push_back({guest.socket.descriptor(), POLLIN, 0});
    // A connection that cannot be accepted, and strangers that keep coming, are always ready.
    while (TcpClock::now() < deadline_) {
      const int ready = ::poll(entries.data(), entries.size(), milliseconds_until(deadline_));
      if (ready > 0) return true;
      if (ready == 0 || errno != EINTR) return false;
    }
    return false;
  }

  // Reads what guest i has said. Strangers lose their connection; a non-empty answer is a reason
  // for which the group cannot be made.
  std::string hear(std::vector<Guest>& guests, std::size_t i, std::size_t bytes) const {
    Guest& guest = guests[i];
    const long got = tcp_receive_some(guest.socket, std::span(guest.hello).subspan(guest.got));
    if (got == kTcpNothingYet) return {};
    if (got > 0) guest.got += static_cast<std::size_t>(got);
    if (got > 0 && guest.got < guest.hello.size()) return {};
    BootstrapHello hello;
    std::memcpy(&hello, guest.hello.data(), sizeof hello);
    if (got == kTcpClosed || hello.magic != BootstrapHello::kMagic || hello.job != place_.job) {
      guest.socket = TcpSocket();
      return {};
    }
    if (hello.size != place_.size) {
      return concat("rank ", hello.rank, " says that the group has ", hello.size,
                    " ranks, rank 0 that it has ", place_.size);
    }
    if (hello.rank < 1 || hello.rank >= place_.size) {
      return concat("a process says that it is rank ", hello.rank, " of ", hello.size,
                    ", which is another's place or none");
    }
    if (hello.bytes != bytes) {
      return concat("rank ", hello.rank, " expects ", hello.bytes, " bytes where rank 0 has ",
                    bytes, ": are all ranks of one build?");
    }
    for (Guest& other : guests) {
      if (other.rank != hello.rank) continue;
      std::byte more[1];
      if (tcp_receive_some(other.socket, more) != kTcpClosed) {
        return concat("two processes say that they are rank ", hello.rank);
      }
      other.rank = -1;  // it went away and came back
      other.socket = TcpSocket();
    }
    guest.rank = hello.rank;
    return {};
  }

  // Who has said who it is says nothing more until it is answered: what can be read of it is that
  // it has gone. It may come back.
  void see_whether_here(Guest& guest, std::string& departed) const {
    std::byte more[1];
    if (guest.rank < 0 || !guest.socket || tcp_receive_some(guest.socket, more) == kTcpNothingYet) {
      return;
    }
    departed = concat("; rank ", guest.rank, " did and went away");
    guest = Guest();
  }

  void answer(const std::vector<Guest>& guests, std::span<const std::byte> payload,
              std::string& problem) const {
    const bool refused = !problem.empty();
    const std::span<const std::byte> body =
        refused ? std::as_bytes(std::span<const char>(problem)) : payload;
    BootstrapAnswer head;
    head.refused = refused ? 1 : 0;
    head.bytes = static_cast<std::uint32_t>(body.size());
    std::vector<std::byte> message(sizeof head + body.size());
    std::memcpy(message.data(), &head, sizeof head);
    std::copy(body.begin(), body.end(), message.begin() + sizeof head);
    const auto until = std::max(deadline_, TcpClock::now() + std::chrono::seconds(1));
    std::string lost;
    for (const Guest& guest : guests) {
      // In a refusal those are meant too that have not finished saying who they are.
      std::string why;
      if (guest.got == guest.hello.size() && !tcp_send(guest.socket, message, until, why)) {
        lost = concat("rank ", guest.rank, " went away before it had the group's id (", why, ")");
      }
    }
    if (!refused) problem = lost;
  }

  static int count_known(const std::vector<Guest>& guests) {
    return static_cast<int>(
        std::count_if(guests.begin(), guests.end(), [](const Guest& g) { return g.rank > 0; }));
  }
  std::string absent(const std::vector<Guest>& guests) const {
    std::string text;
    for (int r = 1; r < place_.size; ++r) {
      const bool here =
          std::any_of(guests.begin(), guests.end(), [r](const Guest& g) { return g.rank == r; });
      if (!here) text += concat(text.empty() ? "" : ", ", r);
    }
    return text;
  }

  // The other ranks: until rank 0 is there, and has all ranks together.
  void ask(std::span<std::byte> payload) const {
    std::string why;
    do {
      if (try_to_ask(payload, why)) return;
      pause();
    } while (TcpClock::now() < deadline_);
    give_up(concat("rank ", place_.rank, " did not get the group's id from rank 0 at ", where(),
                   " within ", waited(), " (", why,
                   "): is rank 0 running, and can its port be reached?"));
  }

  bool try_to_ask(std::span<std::byte> payload, std::string& why) const {
    const TcpSocket socket = tcp_connect(place_.address, place_.port, deadline_, why);
    if (!socket) return false;
    const BootstrapHello hello{BootstrapHello::kMagic, place_.job, place_.rank, place_.size,
                               payload.size()};
    BootstrapAnswer head;
    if (!tcp_send(socket, std::as_bytes(std::span(&hello, 1)), deadline_, why)) return false;
    if (!tcp_receive(socket, std::as_writable_bytes(std::span(&head, 1)), deadline_, why)) {
      return false;
    }
    if (head.magic != BootstrapAnswer::kMagic || head.bytes > BootstrapAnswer::kLongest) {
      why = "something else than rank 0 answers there";
      return false;
    }
    if (head.refused != 0) {
      std::string reason(head.bytes, ' ');
      if (!tcp_receive(socket, std::as_writable_bytes(std::span<char>(reason)), deadline_, why)) {
        return false;
      }
      give_up(reason);
    }
    if (head.bytes != payload.size()) {
      give_up(concat("rank 0 at ", where(), " sent ", head.bytes, " bytes where ", payload.size(),
                     " were expected: are all ranks of one build?"));
    }
    return tcp_receive(socket, payload, deadline_, why);
  }

  void pause() const {
    const auto left = deadline_ - TcpClock::now();
    const TcpClock::duration little = std::chrono::milliseconds(50);
    if (left > TcpClock::duration::zero()) std::this_thread::sleep_for(std::min(left, little));
  }

  BootstrapPlace place_;
  TcpClock::time_point deadline_;
};

}  // namespace tessera::detail

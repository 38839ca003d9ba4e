// Where ranks meet: together, in order, in time, or not at all.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tessera/comm/rendezvous.hpp>

namespace ts = tessera;
using namespace std::chrono_literals;
using tessera::detail::Post;
using tessera::detail::Rendezvous;
using tessera::detail::RendezvousFamily;

namespace {

struct Meeting {
  explicit Meeting(int size, std::chrono::milliseconds timeout = 10s) {
    family->timeout = timeout;
    place = Rendezvous::create(family, size);
  }
  // body(rank) on a thread each; what each threw.
  std::vector<std::string> run(const std::function<void(int)>& body) const {
    std::vector<std::string> thrown(static_cast<std::size_t>(place->size()));
    std::vector<std::thread> threads;
    for (int r = 0; r < place->size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (const ts::CommunicatorError& error) {
          thrown[static_cast<std::size_t>(r)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return thrown;
  }
  std::shared_ptr<RendezvousFamily> family = std::make_shared<RendezvousFamily>();
  std::shared_ptr<Rendezvous> place;
};

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("all see what each brought, and none is overtaken by the next meeting") {
  const Meeting meeting(5);
  const auto thrown = meeting.run([&](int rank) {
    for (int round = 0; round < 300; ++round) {
      int mine = rank * 1000 + round;
      meeting.place->arrive(rank, {"gather", "u", 4, &mine});
      for (int r = 0; r < 5; ++r) {
        CHECK(*static_cast<const int*>(meeting.place->post(r).payload) == r * 1000 + round);
      }
      meeting.place->leave(rank);
      mine = -1;  // only after all have looked
    }
  });
  for (const std::string& message : thrown) CHECK(message.empty());
}

TEST_CASE("B062, B009: ranks that disagree are told apart, on every rank, at once") {
  struct Case {
    Post zero, two;
    const char* says;
  };
  const Case cases[] = {
      {{"all_gather", "a", 4}, {"reduce_scatter", "a", 4}, "rank 2 in reduce_scatter of 'a'"},
      {{"all_gather", "a", 4}, {"all_gather", "b", 4}, "rank 2 in all_gather of 'b'"},
      {{"all_gather", "a", 4}, {"all_gather", "a", 8}, "(8 bytes)"},
      {{"all_gather", "a", 4, nullptr, 1}, {"all_gather", "a", 4, nullptr, 2}, "other parts"},
  };
  for (const Case& each : cases) {
    const Meeting meeting(4);
    const auto begin = std::chrono::steady_clock::now();
    const auto thrown = meeting.run(
        [&](int rank) { meeting.place->arrive(rank, rank == 2 ? each.two : each.zero); });
    CHECK(std::chrono::steady_clock::now() - begin < 2s);
    for (const std::string& message : thrown) {
      CHECK_MESSAGE(says(message, "ranks disagree: rank 0 is in all_gather of 'a'"), message);
      CHECK_MESSAGE(says(message, each.says), message);
    }
  }
}

TEST_CASE("B062, B064: who stays away is named within the time-out, by everyone who came") {
  const Meeting meeting(4, 200ms);
  const auto begin = std::chrono::steady_clock::now();
  const auto thrown = meeting.run([&](int rank) {
    if (rank == 1 || rank == 3) return;
    meeting.place->arrive(rank, {"all_gather", "layer7", 4});
  });
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  for (int r : {0, 2}) {
    const std::string& message = thrown[static_cast<std::size_t>(r)];
    CHECK_MESSAGE(says(message, "of unit 'layer7'"), message);
    CHECK_MESSAGE(says(message, "for rank(s) 1, 3"), message);
    CHECK_MESSAGE(says(message, "200 ms"), message);
  }
  // Who comes later is told the same, at once.
  try {
    meeting.place->arrive(1, {"all_gather", "layer7", 4});
    FAIL_CHECK("it was let in");
  } catch (const ts::CommunicatorError& error) {
    CHECK(says(error.what(), "for rank(s) 1, 3"));
  }
}

TEST_CASE("an abort wakes who waits in any meeting of the family; the first reason stays") {
  const Meeting meeting(2);
  const auto other = Rendezvous::create(meeting.family, 2);
  std::string first, second;
  const auto wait_in = [](const std::shared_ptr<Rendezvous>& place, std::string& message) {
    try {
      place->arrive(0, {"all_gather", "u", 4});
    } catch (const ts::CommunicatorError& error) {
      message = error.what();
    }
  };
  std::thread a([&] { wait_in(meeting.place, first); });
  std::thread b([&] { wait_in(other, second); });
  std::this_thread::sleep_for(20ms);
  meeting.family->abort("the disk is full");
  meeting.family->abort("a consequence");
  a.join();
  b.join();
  CHECK_MESSAGE(says(first, "the disk is full"), first);
  CHECK_MESSAGE(says(second, "the disk is full"), second);
}

TEST_CASE("an abort while others read what a rank brought: it leaves only when they have") {
  for (int round = 0; round < 50; ++round) {
    const Meeting meeting(3);
    std::atomic<int> reading{0};
    const auto thrown = meeting.run([&](int rank) {
      std::vector<int> mine(1 << 14, rank + 1);
      meeting.place->arrive(rank, {"gather", "u", 4, &mine});
      ++reading;
      if (rank == 0) {
        meeting.family->abort("aborted mid-copy");
      } else {
        std::this_thread::sleep_for(1ms);
        const auto& theirs = *static_cast<const std::vector<int>*>(meeting.place->post(0).payload);
        int sum = 0;
        for (int value : theirs) sum += value;
        CHECK(sum == 1 << 14);
      }
      --reading;
      meeting.place->leave(rank);
      CHECK(reading == 0);
      mine.assign(mine.size(), -1);  // freed: nobody may look any more
    });
    for (const std::string& message : thrown) CHECK(message.empty());  // this meeting was complete
  }
}

TEST_CASE(
    "P035: after an abort, a reset in which all take part makes a meeting usable, and no other") {
  const Meeting meeting(3);
  const auto other = Rendezvous::create(meeting.family, 3);
  for (int round = 0; round < 20; ++round) {
    const auto thrown = meeting.run([&](int rank) {
      if (rank == 1) {
        meeting.family->abort("x");
      } else {
        CHECK_THROWS_AS(meeting.place->arrive(rank, {"gather", "u", 4}), ts::CommunicatorError);
      }
      CHECK_THROWS_AS(other->arrive(rank, {"gather", "u", 4}), ts::CommunicatorError);
      meeting.place->meet_to_reset(rank);
      CHECK_THROWS_AS(other->arrive(rank, {"gather", "u", 4}), ts::CommunicatorError);
      other->meet_to_reset(rank);
      for (const auto& place : {meeting.place, other}) {
        place->arrive(rank, {"gather", "u", 4, &rank});
        CHECK(*static_cast<const int*>(place->post(2).payload) == 2);
        place->leave(rank);
      }
    });
    for (const std::string& message : thrown) CHECK(message.empty());
  }
}

TEST_CASE("a reset that not all take part in times out; the next one works") {
  const Meeting meeting(2, 200ms);
  std::string message;
  try {
    meeting.place->meet_to_reset(0);
  } catch (const ts::CommunicatorError& error) {
    message = error.what();
  }
  CHECK_MESSAGE(says(message, "reset()"), message);
  const auto thrown = meeting.run([&](int rank) { meeting.place->meet_to_reset(rank); });
  CHECK(thrown[0].empty());
  CHECK(thrown[1].empty());
}

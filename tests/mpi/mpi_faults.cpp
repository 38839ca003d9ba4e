// Runs under mpirun at 3 ranks, and ends in MPI_Abort, as a process does whose group has failed: it
// says what it has seen before.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <tessera/mpi.hpp>

namespace ts = tessera;
using namespace std::chrono_literals;

namespace {

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const ts::Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void require(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return;
  std::printf("FAULTS: '%s' does not say '%s'\n", text.c_str(), part.c_str());
  std::fflush(stdout);
  std::_Exit(3);
}

void gather(ts::Mpi& ranks, std::size_t bytes) {
  ts::HostStream stream(ts::HostStream::Where::worker);
  std::vector<std::byte> piece(bytes), full(bytes * 3);
  const ts::GatherSegment segment{piece.data(), full.data(), bytes, bytes};
  ranks.all_gather(stream, {ts::CollectiveKind::all_gather, "layer"}, {&segment, 1});
  stream.synchronize();
  stream.check();
}

}  // namespace

int main() {
  ts::Mpi world = ts::Mpi::world();
  if (world.size() != 3) return 2;
  {  // A rank stays away: the others name it.
    ts::Mpi ranks = ts::Mpi::adopt(MPI_COMM_WORLD, {.timeout = 2s});
    if (ranks.rank() != 2) {
      const std::string text = refusal([&] { gather(ranks, 1000); });
      require(text, "all_gather of unit 'layer'");
      require(text, "rank");
      require(text + refusal([&] { ranks.reset(); }), "cannot be used again");
    }
    (void)world.exchange(0);
    require(refusal([&] { gather(ranks, 1000); }), "2 has not sent");
  }
  {  // A rank gives up: the others are told why, at once.
    ts::Mpi ranks = ts::Mpi::adopt(MPI_COMM_WORLD, {.timeout = 60s});
    const auto begin = std::chrono::steady_clock::now();
    if (ranks.rank() == 1) {
      std::this_thread::sleep_for(500ms);
      ranks.abort("rank 1 has had enough");
    } else {
      require(refusal([&] { gather(ranks, 1000); }), "rank 1 has had enough");
    }
    if (std::chrono::steady_clock::now() - begin > 20s) require("it took too long", "at once");
    (void)world.exchange(0);
  }
  {  // Ranks that disagree on what they send.
    ts::Mpi ranks = ts::Mpi::adopt(MPI_COMM_WORLD, {.timeout = 5s});
    require(refusal([&] { gather(ranks, ranks.rank() == 0 ? 500 : 1000); }), "rank");
    (void)world.exchange(0);
  }
  if (world.rank() == 0) std::printf("FAULTS: all as they should be\n");
  std::fflush(stdout);
  (void)world.exchange(0);
  return 0;
}

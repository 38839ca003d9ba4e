// What a launcher, torchrun or mpirun, says about this process, read from the environment.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include "tessera/error.hpp"

namespace tessera::detail {

/// This process's place among those that a launcher started.
struct LaunchEnvironment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;     ///< its place on its host, which chooses the device
  std::string address;    ///< of rank 0's host; empty for one rank
  int port = 0;           ///< the launcher's own; 0 for one rank
  std::uint64_t job = 0;  ///< tells this run, and this restart of it, from others
};

/// A whole number in the variable's value, with nothing around it.
inline int read_environment_number(const char* name, std::string_view value, int least, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc::result_out_of_range && end == value.data() + value.size()) {
    fail("tessera: the environment variable ", name, " is ", value, ", but it must be ", least,
         " to ", most);
  }
  if (error != std::errc() || end != value.data() + value.size()) {
    fail("tessera: the environment variable ", name, " is '", value,
         "', which is not a whole number");
  }
  if (number < least || number > most) {
    fail("tessera: the environment variable ", name, " is ", number, ", but it must be ", least,
         most == std::numeric_limits<int>::max() ? concat(" or more") : concat(" to ", most));
  }
  return number;
}

/// What a launcher calls a process's place. The first whose `size` is set is taken.
struct LauncherNames {
  const char* size;
  const char* rank;
  const char* local_rank;
  const char* local_size;
  const char* launcher;
};
inline constexpr LauncherNames kLaunchers[] = {
    {"WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "torchrun"},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun of Open MPI"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpirun of MPICH"},
};

/// What sets one run apart from others that meet at the same port.
inline constexpr const char* kRunNames[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                            "PMIX_NAMESPACE"};

/// Where ranks of one host meet when nothing says where.
inline constexpr int kDefaultPort = 29500;

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT through `get(name)`, which gives
/// a string or null; or what mpirun of Open MPI or MPICH calls them, under which MASTER_ADDR may be
/// missing where all ranks are on this host, and under Open MPI, which names its runs, MASTER_PORT.
/// Without any of the sizes there is one rank.
template <class Get>
LaunchEnvironment read_launch_environment(Get&& get) {
  const auto text = [&](const char* name) -> std::string_view {
    const char* value = get(name);
    return value ? std::string_view(value) : std::string_view();
  };
  const LauncherNames* names = &kLaunchers[0];
  for (const LauncherNames& each : kLaunchers) {
    if (text(each.size).empty()) continue;
    names = &each;
    break;
  }
  const bool by_mpi = names != &kLaunchers[0];
  const auto required = [&](const char* name, int size) {
    const std::string_view value = text(name);
    if (value.empty()) {
      fail("tessera: ", names->size, " is ", size, ", but the environment variable ", name,
           " is not set: start every process through a launcher that sets it, such as torchrun");
    }
    return value;
  };
  constexpr int kMost = std::numeric_limits<int>::max();
  LaunchEnvironment found;
  const std::string_view size = text(names->size), rank = text(names->rank);
  const std::string_view local_rank = text(names->local_rank);
  if (!local_rank.empty()) {
    found.local_rank = read_environment_number(names->local_rank, local_rank, 0, kMost);
  }
  if (size.empty()) {
    if (!rank.empty() && read_environment_number("RANK", rank, 0, kMost) != 0) {
      fail("tessera: the environment variable RANK is ", rank, ", but WORLD_SIZE is not set");
    }
    return found;
  }
  found.size = read_environment_number(names->size, size, 1, kMost);
  // One launcher may start another, which starts more; fewer are left over from elsewhere.
  for (const LauncherNames& each : kLaunchers) {
    const std::string_view other = text(each.size);
    if (&each == names || other.empty()) continue;
    if (read_environment_number(each.size, other, 1, kMost) > found.size) {
      fail("tessera: ", names->size, " is ", found.size, ", but ", each.size, ", of ",
           each.launcher, ", is ", other, ": unset those that are left over from another run");
    }
  }
  if (found.size > 1 || !rank.empty()) {
    found.rank = read_environment_number(names->rank, required(names->rank, found.size), 0, kMost);
  }
  if (found.rank >= found.size) {
    fail("tessera: the environment variable ", names->rank, " is ", found.rank, ", but ",
         names->size, " is ", found.size, ": ranks count from 0 to ", found.size - 1);
  }
  if (found.size == 1) return found;
  required(names->local_rank, found.size);
  const std::string_view local_size = text(names->local_size);
  const bool one_host =
      by_mpi && !local_size.empty() &&
      read_environment_number(names->local_size, local_size, 1, kMost) == found.size;
  if (one_host && text("MASTER_ADDR").empty()) {
    found.address = "127.0.0.1";
  } else {
    found.address = std::string(required("MASTER_ADDR", found.size));
  }
  const bool names_runs = !text("PMIX_NAMESPACE").empty();
  if (by_mpi && names_runs && text("MASTER_PORT").empty()) {
    found.port = kDefaultPort;
  } else {
    found.port =
        read_environment_number("MASTER_PORT", required("MASTER_PORT", found.size), 1, 65535);
  }
  found.job = 0xcbf29ce484222325;  // FNV-1a
  for (const char* name : kRunNames) {
    for (const char letter : text(name)) {
      found.job = (found.job ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
    }
    found.job *= 0x100000001b3;
  }
  return found;
}

inline LaunchEnvironment read_launch_environment() {
  return read_launch_environment([](const char* name) { return std::getenv(name); });
}

/// The port where the ranks meet: the launcher's own store may be listening on MASTER_PORT.
inline int bootstrap_port(const LaunchEnvironment& environment, int chosen) {
  if (chosen != 0) return chosen;
  if (environment.port >= 65535) {
    fail("tessera: the environment variable MASTER_PORT is ", environment.port,
         ", but the ranks meet at the port after it: set a smaller one, or "
         "NcclOptions::bootstrap_port");
  }
  return environment.port + 1;
}

/// Throws unless the host has a device for this rank.
inline void check_local_device(int local_rank, int devices) {
  if (local_rank < devices) return;
  fail("tessera: the environment variable LOCAL_RANK is ", local_rank, ", but this process sees ",
       devices, devices == 1 ? " CUDA device" : " CUDA devices",
       ": start no more ranks on a host than it has devices, or set NcclOptions::device");
}

}  // namespace tessera::detail

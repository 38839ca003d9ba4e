// Ranks as processes of this machine, without a launcher.
#pragma once

#include <cstddef>
#include <optional>

namespace llama {

/// Forks a process for each of `ranks`, in which it returns nothing, with the environment that a
/// launcher would have set; to be called before anything uses a GPU. In the parent it waits for
/// them and returns what the program is to exit with: the first failure ends the others.
std::optional<int> spawn_ranks(std::size_t ranks);

}  // namespace llama

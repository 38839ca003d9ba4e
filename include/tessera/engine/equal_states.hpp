// What several ranks keep, and train on without ever comparing again, is found to be the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/exchange_hash.hpp"
#include "tessera/engine/states.hpp"
#include "tessera/exact/digest.hpp"

namespace tessera::engine {

/// Compares the first values of parameters between replicas, and of tensors that are not sliced
/// between the ranks of the tensor axis. Each rank reads its pieces once.
template <Backend Bk>
class EqualStates {
 public:
  using B = typename Bk::Runtime;

  EqualStates(Context<Bk>& context, States<Bk>& states) : c_(context), states_(states) {}

  /// Throws Error, on all ranks of the group that differs, with the ranks that do. Collective.
  void check() {
    if constexpr (B::holds_memory) {
      const int tensor = c_.mesh_shape.tensor;
      if (c_.replicas() == 1 && tensor == 1) return;
      std::uint64_t all = 0;
      std::uint64_t unsliced = 0;
      hash(all, unsliced);
      compare(exchange_hash(c_, c_.replica_comm, c_.replicas(), all), "replicas",
              "replicas begin with other values: give all of them the same");
      compare(exchange_hash(c_, c_.tensor_comm, tensor, unsliced), "ranks of the tensor axis",
              "tensors that are not sliced(...) begin with other values on the tensor axis: they "
              "are one parameter, so give all of its ranks the same");
    }
  }

 private:
  void compare(const std::vector<std::uint64_t>& hashes, const char* ranks, const char* why) const {
    std::string others;
    for (std::size_t r = 1; r < hashes.size(); ++r) {
      if (hashes[r] == hashes[0]) continue;
      others += (others.empty() ? "" : ", ") + std::to_string(r);
    }
    if (!others.empty()) detail::fail("tessera: ", why, " (", ranks, " ", others, " and 0 differ)");
  }

  void hash(std::uint64_t& all, std::uint64_t& unsliced) {
    Digest of_all;
    Digest of_unsliced;
    std::vector<std::uint32_t> part;
    c_.await(c_.compute());
    for (const TensorRecord& tensor : c_.registry.tensors()) {
      const std::uint64_t bytes = states_.held(State::parameter(), tensor).size() *
                                  states_.width(State::parameter(), tensor);
      const std::byte* from = bytes > 0 ? states_.address(State::parameter(), tensor) : nullptr;
      for (std::uint64_t at = 0; at < bytes; at += kStagingBytes) {
        const std::uint64_t now = std::min(bytes - at, kStagingBytes);
        part.assign(static_cast<std::size_t>((now + 3) / 4), 0);  // by words: four times as fast
        c_.backend.read(c_.compute(), part.data(), from + at, now);
        add(of_all, part);
        if (!tensor.info.is_sliced) add(of_unsliced, part);
      }
    }
    all = of_all.value();
    unsliced = of_unsliced.value();
  }

  static void add(Digest& to, const std::vector<std::uint32_t>& words) {
    to.update(reinterpret_cast<const float*>(words.data()), words.size());
  }

  Context<Bk>& c_;
  States<Bk>& states_;
};

}  // namespace tessera::engine

// Backends, which name a runtime and a communicator, and the mesh of ranks a Shard runs on.
#pragma once

#include <string>
#include <utility>

#include "tessera/backend/host.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/in_process.hpp"

namespace tessera {

/// A backend: a Runtime, the Communicator that carries its collectives, and the runtime's options.
template <class B>
concept Backend = requires {
  typename B::Runtime;
  typename B::Communicator;
  requires Runtime<typename B::Runtime>;
  requires Communicator<typename B::Communicator, typename B::Runtime>;
};

inline namespace TESSERA_ISA {

/// Tensors in the process's memory, streams that are threads.
template <class Comm = InProcess>
struct HostBackend {
  using Runtime = HostRuntime;
  using Communicator = Comm;
};
using Host = HostBackend<>;

}  // namespace TESSERA_ISA

static_assert(Backend<Host>);

/// One rank's place among the ranks that share the training state: today one axis, `shard`.
template <Backend B>
class Mesh {
 public:
  using Communicator = typename B::Communicator;
  using RuntimeOptions = typename B::Runtime::Options;

  /// All ranks of `communicator`. It must stay usable as long as the Shards made on this mesh.
  explicit Mesh(Communicator communicator, RuntimeOptions options = {})
      : communicator_(std::move(communicator)), options_(options) {}

  /// One rank by itself.
  static Mesh single(RuntimeOptions options = {}) { return Mesh(Communicator{}, options); }

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  Communicator& communicator() { return communicator_; }
  const RuntimeOptions& options() const { return options_; }
  /// For example "shard=4, this is rank 2".
  std::string describe() const {
    return "shard=" + std::to_string(size()) + ", this is rank " + std::to_string(rank());
  }

 private:
  Communicator communicator_;
  RuntimeOptions options_;
};

}  // namespace tessera

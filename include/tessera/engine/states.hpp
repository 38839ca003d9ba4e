// Reading and writing training state by tensor: full values over all ranks, and this rank's part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/exchange_hash.hpp"
#include "tessera/engine/staging.hpp"
#include "tessera/exact/bf16.hpp"
#include "tessera/exact/digest.hpp"
#include "tessera/exact/split_float.hpp"

namespace tessera {

/// A kind of training state of a tensor.
struct State {
  enum class Kind : std::uint8_t { parameter, master, gradient, moment };
  Kind kind = Kind::parameter;
  int index = 0;  ///< which moment

  static constexpr State parameter() { return {Kind::parameter, 0}; }
  /// The fp32 weights; where the precision keeps none of the tensor, the parameter itself.
  static constexpr State master() { return {Kind::master, 0}; }
  /// The reduced gradient, between the last reduction and step(): before clipping.
  static constexpr State gradient() { return {Kind::gradient, 0}; }
  static constexpr State moment(int index) { return {Kind::moment, index}; }
};

/// This rank's part of a state kept in fp32: the tensor's elements [begin, begin + values.size()).
struct LocalState {
  std::span<float> values;
  std::uint64_t begin = 0;
};

}  // namespace tessera

namespace tessera::engine {

template <Backend Bk>
class States {
 public:
  using B = typename Bk::Runtime;

  explicit States(Context<Bk>& context) : c_(context) {}

  static const char* name_of(State state) {
    switch (state.kind) {
      case State::Kind::parameter: return "parameter";
      case State::Kind::master: return "master of";
      case State::Kind::gradient: return "reduced gradient of";
      case State::Kind::moment: return "moment of";
    }
    return "?";
  }

  /// The tensor's elements this rank holds of `state`.
  layout::Range held(State state, const TensorRecord& tensor) const {
    if (is_whole(state, tensor)) return {0, tensor.elements};
    return layout::owned(c_.registry.group_of(tensor), tensor.placement, tensor.elements,
                         c_.rank());
  }

  /// Where the first element this rank holds lies; of a split master, its lower half.
  std::byte* address(State state, const TensorRecord& tensor) {
    const std::uint32_t u = tensor.unit;
    const std::uint32_t g = tensor.placement.group;
    const std::uint64_t element = tensor.placement.offset + held(state, tensor).begin;
    if (state.kind == State::Kind::parameter) {
      const layout::GroupLayout& group = c_.layout(u).groups[g];
      const std::uint64_t width = size_of(group.dtype);
      if (c_.facts[u].reshard == Reshard::never) {
        return c_.memory + c_.map.units[u].parameters + c_.layout(u).full_offset(g) +
               element * width;
      }
      const std::uint64_t begin = group.piece_elements * static_cast<std::uint64_t>(c_.rank());
      return c_.piece(u, g) + (element - begin) * width;
    }
    std::byte* array = nullptr;
    switch (state.kind) {
      case State::Kind::master: array = master(tensor); break;
      case State::Kind::gradient: array = c_.reduced(u, g); break;
      default: array = c_.moment(u, g, state.index); break;
    }
    const bool half = state.kind == State::Kind::master && is_split(tensor);
    return array + (element - c_.state_range(u, g).begin) *
                       (half ? sizeof(std::uint16_t) : width(state, tensor));
  }

  void check(State state, const TensorRecord& tensor) const {
    const bool parameter = state.kind == State::Kind::parameter;
    if (!parameter && !tensor.info.trainable) {
      detail::fail("tessera: tensor '", tensor.info.name,
                   "' is frozen: it has no master weights, gradient or moments");
    }
    if (state.kind == State::Kind::moment && (state.index < 0 || state.index >= c_.needs.moments)) {
      detail::fail("tessera: there is no moment ", state.index, ": the optimizer has ",
                   c_.needs.moments);
    }
    if (state.kind == State::Kind::gradient && !c_.units[tensor.unit].reduced) {
      detail::fail("tessera: the gradient of '", tensor.info.name,
                   "' has not been reduced in this step");
    }
  }

  DType dtype(State state, const TensorRecord& tensor) const {
    switch (state.kind) {
      case State::Kind::parameter: return tensor.info.dtype;
      case State::Kind::master:
        return master_of(tensor) == Master::none ? tensor.info.dtype : DType::f32;
      case State::Kind::gradient: return c_.policy.precision.reduced_of(tensor.info.dtype);
      case State::Kind::moment: return c_.policy.precision.moments;
    }
    return DType::f32;
  }
  std::uint64_t width(State state, const TensorRecord& tensor) const {
    return size_of(dtype(state, tensor));
  }
  /// There is more of the master than the parameter.
  bool has_master(const TensorRecord& tensor) const {
    return tensor.info.trainable && master_of(tensor) != Master::none;
  }
  /// Its upper half is the parameter.
  bool is_split(const TensorRecord& tensor) const {
    return tensor.info.trainable && master_of(tensor) == Master::split;
  }

  /// The whole tensor on every rank. Collective unless this rank holds all of it.
  std::vector<std::byte> full(State state, const TensorRecord& tensor) {
    check(state, tensor);
    wait_for_reductions(state);
    if (state.kind == State::Kind::master && is_split(tensor)) return full_split(tensor);
    return full(state, tensor, address(state, tensor), width(state, tensor));
  }

  /// One hash of those that the ranks of the tensor axis have found of their slices; the same as
  /// `own` where there is one rank. Collective.
  std::uint64_t over_slices(std::uint64_t own) {
    if (c_.mesh_shape.tensor == 1) return own;
    Digest all;
    for (std::uint64_t each : exchange_hash(c_, c_.tensor_comm, c_.mesh_shape.tensor, own)) {
      all.update(reinterpret_cast<const unsigned char*>(&each), sizeof each);
    }
    return all.value();
  }

  /// Sets a tensor from its full values, each rank its own part. Setting the parameter sets the
  /// master too, and the other way round.
  void set_full(State state, const TensorRecord& tensor, std::span<const float> values) {
    check(state, tensor);
    if (values.size() != tensor.elements) {
      detail::fail("tessera: tensor '", tensor.info.name, "' has ", tensor.elements,
                   " elements, not ", values.size());
    }
    wait_for_reductions(state);
    const bool weights = state.kind == State::Kind::parameter || state.kind == State::Kind::master;
    if (!weights) {
      write_part(state, tensor, values);
      return;
    }
    write_part(State::parameter(), tensor, values);
    if (has_master(tensor)) write_part(State::master(), tensor, values);
    c_.note_update();
  }

  /// Writes this rank's part of the full values, in the state's own type.
  void write_part(State state, const TensorRecord& tensor, std::span<const float> values) {
    const layout::Range own = held(state, tensor);
    const std::span<const float> part = values.subspan(own.begin, own.size());
    write(state, tensor, part);
  }

  /// Writes the values of the elements this rank holds.
  void write(State state, const TensorRecord& tensor, std::span<const float> part) {
    if (part.empty()) return;
    std::byte* to = address(state, tensor);
    const DType dtype = this->dtype(state, tensor);
    const bool weights = state.kind == State::Kind::parameter || state.kind == State::Kind::master;
    if (weights && is_split(tensor)) {
      std::vector<std::uint16_t> halves(part.size());
      for (std::size_t i = 0; i < part.size(); ++i) {
        const SplitFloat value = split_float(part[i]);
        halves[i] = state.kind == State::Kind::master ? value.low : value.high.bits;
      }
      c_.backend.write(c_.compute(), to, halves.data(), halves.size() * sizeof(halves[0]));
    } else if (dtype == DType::f32) {
      c_.backend.write(c_.compute(), to, part.data(), part.size_bytes());
    } else if (dtype == DType::bf16) {
      std::vector<bf16> rounded(part.size());
      for (std::size_t i = 0; i < part.size(); ++i) rounded[i] = to_bf16(part[i]);
      c_.backend.write(c_.compute(), to, rounded.data(), rounded.size() * sizeof(bf16));
    } else {
      detail::fail("tessera: tensor '", tensor.info.name, "' of type ", dtype,
                   " cannot be set from floats: initialise it with from_tensors");
    }
  }

  /// Floats of a tensor's bytes as full() returns them.
  std::vector<float> to_floats(State state, const TensorRecord& tensor,
                               const std::vector<std::byte>& bytes) const {
    std::vector<float> values(tensor.elements);
    const DType dtype = this->dtype(state, tensor);
    if (dtype == DType::f32) {
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(values.data()));
    } else if (dtype == DType::bf16) {
      const auto* from = reinterpret_cast<const bf16*>(bytes.data());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(from[i]);
    } else {
      detail::fail("tessera: tensor '", tensor.info.name, "' of type ", dtype,
                   " has no floats: read its bytes");
    }
    return values;
  }

 private:
  // The fp32 weights that the optimizer updates: the master, or the parameters themselves.
  std::byte* master(const TensorRecord& tensor) {
    const std::uint32_t g = tensor.placement.group;
    return has_master(tensor) ? c_.master(tensor.unit, g) : c_.weights(tensor.unit, g);
  }
  Master master_of(const TensorRecord& tensor) const {
    return c_.policy.precision.master_of(tensor.info.dtype);
  }

  // `from`: this rank's part, of `element` bytes an element.
  std::vector<std::byte> full(State state, const TensorRecord& tensor, const std::byte* from,
                              std::uint64_t element) {
    std::vector<std::byte> result(tensor.elements * element);
    if (is_whole(state, tensor)) {  // by rule, not by size: every rank must decide alike
      c_.await(c_.compute());
      c_.backend.read(c_.compute(), result.data(), from, result.size());
      return result;
    }
    std::uint64_t most = 0;
    for (int r = 0; r < c_.world(); ++r) most = std::max(most, part(tensor, r).size());
    const auto ranks = static_cast<std::uint64_t>(c_.world());
    const std::uint64_t step =
        std::min(most, layout::round_up(kStagingBytes / ((ranks + 1) * element), kCell));
    const Staging<B> staging(c_.backend, step * (ranks + 1) * element);
    std::byte* all = staging.data();
    // A rank with less than the others sends what follows its own, for nothing.
    c_.backend.fill(c_.compute(), all, 0, step * (ranks + 1) * element);
    std::byte* mine = all + step * ranks * element;
    std::vector<std::byte> gathered(step * ranks * element);
    for (std::uint64_t begin = 0; begin < most; begin += step) {
      gather_part(state, tensor, from, element, {begin, begin + step}, mine, all);
      c_.backend.read(c_.compute(), gathered.data(), all, gathered.size());
      for (int r = 0; r < c_.world(); ++r) {
        const layout::Range range = part(tensor, r);
        if (begin >= range.size()) continue;
        const std::byte* part_of_r =
            gathered.data() + step * static_cast<std::uint64_t>(r) * element;
        std::copy(part_of_r, part_of_r + std::min(step, range.size() - begin) * element,
                  result.data() + (range.begin + begin) * element);
      }
    }
    return result;
  }

  std::vector<std::byte> full_split(const TensorRecord& tensor) {
    const std::uint32_t g = tensor.placement.group;
    const std::uint64_t begin = tensor.placement.offset + held(State::master(), tensor).begin -
                                c_.state_range(tensor.unit, g).begin;
    const auto highs =
        full(State::master(), tensor, c_.weights(tensor.unit, g) + begin * sizeof(bf16), 2);
    const auto lows = full(State::master(), tensor, address(State::master(), tensor), 2);
    const auto* high = reinterpret_cast<const bf16*>(highs.data());
    const auto* low = reinterpret_cast<const std::uint16_t*>(lows.data());
    std::vector<std::byte> result(tensor.elements * sizeof(float));
    auto* values = reinterpret_cast<float*>(result.data());
    for (std::uint64_t i = 0; i < tensor.elements; ++i) values[i] = join_float(high[i], low[i]);
    return result;
  }

  // Every rank holds all of it. Of the reduced gradients each has its own piece, until step().
  bool is_whole(State state, const TensorRecord& tensor) const {
    if (c_.world() == 1) return true;
    switch (state.kind) {
      case State::Kind::parameter: return c_.facts[tensor.unit].reshard == Reshard::never;
      case State::Kind::gradient: return false;
      default: return !c_.policy.strategy.shard_optimizer;
    }
  }

  // The elements `of` of every rank's part, to `all` on every rank.
  void gather_part(State state, const TensorRecord& tensor, const std::byte* from,
                   std::uint64_t element, layout::Range of, std::byte* mine, std::byte* all) {
    const layout::Range own = held(state, tensor);
    if (of.begin < own.size()) {
      c_.backend.copy(c_.compute(), mine, from + of.begin * element,
                      std::min(of.size(), own.size() - of.begin) * element);
    }
    c_.await(c_.compute());
    const GatherSegment segment{mine, all, of.size() * element, of.size() * element};
    c_.reduce_comm.all_gather(c_.reducing(), {CollectiveKind::all_gather, tensor.info.name},
                              {&segment, 1});
    c_.await(c_.reducing());
    c_.check();
  }

  // The reduce stream may still be writing them.
  void wait_for_reductions(State state) {
    if (state.kind == State::Kind::gradient) c_.await(c_.reducing());
  }

  layout::Range part(const TensorRecord& tensor, int rank) const {
    return layout::owned(c_.registry.group_of(tensor), tensor.placement, tensor.elements, rank);
  }

  Context<Bk>& c_;
};

}  // namespace tessera::engine

// Memory and first values: allocates the plan, and fills each rank's own pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/states.hpp"

namespace tessera {

/// The values the tensors themselves hold at materialize, the same on every rank.
struct FromTensors {};
inline constexpr FromTensors from_tensors{};

/// The values that one rank's tensors hold at materialize; the others' need no memory.
struct FromRank {
  int root = 0;
};
constexpr FromRank from_rank(int root) { return {root}; }

}  // namespace tessera

namespace tessera::engine {

template <Backend Bk>
class Materializing {
 public:
  using B = typename Bk::Runtime;

  Materializing(Context<Bk>& context, States<Bk>& states) : c_(context), states_(states) {}

  /// Lays out, plans and makes the one allocation. No rank's values are set yet.
  void allocate() {
    if (c_.materialized || c_.memory != nullptr) {
      detail::fail("tessera: materialize was called twice");
    }
    check_groups();
    c_.registry.lay_out(c_.world());
    const Planner planner(c_.registry, c_.policy, c_.options, c_.moments, c_.world());
    c_.facts = planner.facts();
    std::tie(c_.plan, c_.map) = planner.plan();
    c_.slot_bytes = c_.map.scalars - c_.map.slots;
    c_.slots.set_size(c_.slot_bytes);
    c_.norm_tree = std::make_unique<NormTree>(c_.registry, c_.world());
    c_.units = std::vector<UnitState<B>>(c_.registry.units().size());
    try {
      c_.memory = static_cast<std::byte*>(c_.backend.allocate(c_.map.total));
    } catch (const Error& error) {
      detail::fail(error.what(), "\n", c_.plan.to_string());
    }
    for (std::uint32_t u = 0; u < c_.units.size(); ++u) {
      if (!c_.facts[u].parameter_slot) {
        c_.units[u].parameters = c_.memory + c_.map.units[u].parameters;
      }
      c_.units[u].valid = c_.facts[u].reshard == Reshard::never || c_.facts[u].full_bytes == 0;
      c_.units[u].waited = c_.units[u].valid;
      if (!c_.facts[u].gradient_slot) {
        c_.units[u].gradients = c_.memory + c_.map.units[u].gradients;
      }
    }
    // Parameters (padding included), moments and sums begin at zero; buffers are written first.
    if (c_.map.total > 0) {
      const std::uint64_t states = c_.units.empty() ? 0 : first_buffer();
      c_.backend.fill(c_.compute(), c_.memory, 0, states);
      c_.backend.fill(c_.compute(), c_.memory + c_.map.scalars, 0, c_.map.total - c_.map.scalars);
    }
    c_.note_use();
  }

  /// value(info, index) for each element this rank holds; index counts in the whole tensor, so
  /// that values do not depend on the world size. Frozen tensors of types that floats cannot set
  /// keep the values they hold.
  template <class Value>
  void generate(Value&& value) {
    if constexpr (B::holds_memory) {
      std::vector<float> part;
      for (const TensorRecord& tensor : c_.registry.tensors()) {
        if (!settable(tensor.info.dtype)) {
          take(tensor, tensor.handle.data());
          continue;
        }
        const layout::Range weights = states_.held(State::parameter(), tensor);
        fill(State::parameter(), tensor, weights, part, value);
        if (tensor.info.trainable && PrecisionDescription::has_master(tensor.info.dtype)) {
          fill(State::master(), tensor, states_.held(State::master(), tensor), part, value);
        }
      }
    }
    finish();
  }

  void take_from_tensors() {
    if constexpr (B::holds_memory) {
      for (const TensorRecord& tensor : c_.registry.tensors()) take(tensor, tensor.handle.data());
    }
    finish();
  }

  /// Collective: `root`'s tensors go to all ranks, one at a time.
  void take_from_rank(int root) {
    if (root < 0 || root >= c_.world()) {
      detail::fail("tessera: from_rank(", root, "): there are ", c_.world(), " ranks");
    }
    if constexpr (B::holds_memory) {
      std::vector<std::byte> values;
      for (const TensorRecord& tensor : c_.registry.tensors()) {
        const std::uint64_t bytes = tensor.elements * size_of(tensor.info.dtype);
        values.resize(bytes);
        if (c_.rank() == root) {
          require_memory(tensor, tensor.handle.data());
          const auto* from = static_cast<const std::byte*>(tensor.handle.data());
          std::copy(from, from + bytes, values.data());
        }
        c_.reduce_comm.broadcast(c_.reducing(), {CollectiveKind::broadcast, tensor.info.name},
                                 values.data(), bytes, root);
        c_.backend.synchronize(c_.reducing());
        c_.check();
        take(tensor, values.data());
      }
    }
    finish();
  }

 private:
  void check_groups() const {
    for (const TensorRecord& tensor : c_.registry.tensors()) {
      if (tensor.group != 0 && static_cast<std::size_t>(tensor.group) >= c_.options.groups.size()) {
        detail::fail("tessera: tensor '", tensor.info.name, "' is in parameter group ",
                     tensor.group, " but Options::groups has ", c_.options.groups.size());
      }
    }
  }

  static bool settable(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

  std::uint64_t first_buffer() const {
    std::uint64_t bytes = c_.map.slots;
    for (const UnitMap& unit : c_.map.units) bytes = std::min(bytes, unit.gradients);
    return bytes;
  }

  void require_memory(const TensorRecord& tensor, const void* data) const {
    if (data != nullptr || tensor.elements == 0) return;
    detail::fail("tessera: materialize: tensor '", tensor.info.name, "' of type ",
                 tensor.info.dtype, " holds no values: give it memory, or an initialiser");
  }

  template <class Value>
  void fill(State state, const TensorRecord& tensor, layout::Range range, std::vector<float>& part,
            Value& value) {
    part.resize(range.size());
    for (std::uint64_t i = 0; i < part.size(); ++i) {
      part[i] = value(tensor.info, range.begin + i);
    }
    states_.write(state, tensor, part);
  }

  // The parts this rank holds, from the whole tensor's elements at `data`.
  void take(const TensorRecord& tensor, const void* data) {
    require_memory(tensor, data);
    const auto* bytes = static_cast<const std::byte*>(data);
    const std::uint64_t width = size_of(tensor.info.dtype);
    const layout::Range weights = states_.held(State::parameter(), tensor);
    if (!weights.empty()) {
      c_.backend.write(c_.compute(), states_.address(State::parameter(), tensor),
                       bytes + weights.begin * width, weights.size() * width);
    }
    if (!tensor.info.trainable || !PrecisionDescription::has_master(tensor.info.dtype)) return;
    const layout::Range master = states_.held(State::master(), tensor);
    std::vector<float> widened(master.size());
    const auto* values = reinterpret_cast<const bf16*>(bytes);
    for (std::uint64_t i = 0; i < widened.size(); ++i) {
      widened[i] = to_float(values[master.begin + i]);
    }
    states_.write(State::master(), tensor, widened);
  }

  // From here on a tensor is only there inside a lease.
  void finish() {
    for (const TensorRecord& tensor : c_.registry.tensors()) {
      if (tensor.handle.rebindable()) tensor.handle.rebind(nullptr);
    }
    c_.backend.record(c_.updated, c_.compute());
    c_.materialized = true;  // not before: an initialiser that throws leaves nothing to lease
  }

  Context<Bk>& c_;
  States<Bk>& states_;
};

}  // namespace tessera::engine

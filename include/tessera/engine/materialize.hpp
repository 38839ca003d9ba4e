// Memory and first values: allocates the plan, and fills each rank's own pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/engine/context.hpp"
#include "tessera/engine/sizes.hpp"
#include "tessera/engine/staging.hpp"
#include "tessera/engine/states.hpp"
#include "tessera/engine/step_functions.hpp"
#include "tessera/exact/split_float.hpp"

namespace tessera {

/// The values the tensors themselves hold at materialize, the same on every rank.
struct FromTensors {};
inline constexpr FromTensors from_tensors{};

/// The values that one rank's tensors hold at materialize; the others' need no memory.
struct FromRank {
  int root = 0;
};
constexpr FromRank from_rank(int root) { return {root}; }

/// Values computed where the training state is, in a kernel under CUDA: `of(info)` gives each
/// tensor's function `TESSERA_HD float operator()(std::uint64_t index) const` of an element's place
/// in the whole tensor. Trivially copyable, and the same bits on host and device if its arithmetic
/// is, as tessera::random_normal's.
template <class Of>
struct InPlace {
  Of of;
};
template <class Of>
constexpr InPlace<Of> in_place(Of of) {
  return {std::move(of)};
}

}  // namespace tessera

namespace tessera::engine {

/// What is stored of an fp32 value.
struct Kept {
  using element = float;
  static TESSERA_HD float of(float value) { return value; }
};
struct Rounded {
  using element = bf16;
  static TESSERA_HD bf16 of(float value) { return to_bf16(value); }
};
struct UpperHalf {
  using element = bf16;
  static TESSERA_HD bf16 of(float value) { return split_float(value).high; }
};
struct LowerHalf {
  using element = std::uint16_t;
  static TESSERA_HD std::uint16_t of(float value) { return split_float(value).low; }
};

/// Sets elements to a function of their place.
template <class Value, class Stored>
struct SetInPlace {
  Value value;
  SlicePlace slice;
  std::uint64_t first;
  typename Stored::element* to;

  TESSERA_EXEC_CHECK_DISABLE
  TESSERA_HD void operator()(std::uint64_t i) const {
    to[i] = Stored::of(value(slice.whole_index(first + i)));
  }
};

template <Backend Bk>
class Materializing {
 public:
  using B = typename Bk::Runtime;

  Materializing(Context<Bk>& context, States<Bk>& states) : c_(context), states_(states) {}

  /// Lays out, plans and makes the one allocation. No rank's values are set yet.
  void allocate() {
    c_.check();
    check_groups();
    check_size(c_.registry, c_.options, c_.needs.moments, c_.mesh_shape);
    c_.registry.lay_out(c_.mesh_shape);
    const Planner planner(c_.registry, c_.policy, c_.options, c_.needs, c_.mesh_shape);
    c_.facts = planner.facts();
    std::tie(c_.plan, c_.map) = planner.plan();
    c_.slot_bytes = c_.map.reduce_scratch - c_.map.slots;
    c_.slots.set_size(c_.slot_bytes);
    c_.norm_tree = std::make_unique<NormTree>(c_.registry, c_.world());
    c_.units = std::vector<UnitState<B>>(c_.registry.units().size());
    try {
      c_.allocate_memory();
    } catch (const Error& error) {
      detail::fail(error.what(), "\n", c_.plan.to_string(), c_.plan.largest_units());
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
    // Parameters (padding included), moments and sums begin at zero. Buffers are written before
    // they are read, but for the padding in them, which is read for nothing.
    if (c_.map.total > 0 && !c_.backend.poisons()) {
      c_.backend.fill(c_.compute(), c_.memory, 0, c_.map.total);
    } else if (c_.map.total > 0) {
      c_.backend.fill(c_.compute(), c_.memory, 0, c_.map.buffers);
      c_.backend.fill(c_.compute(), c_.memory + c_.map.step, 0, c_.map.total - c_.map.step);
    }
    c_.note_use();
  }

  /// After an exception out of the others: as if materialize had not been called, but that tensors
  /// which have been handed over point at null.
  void undo() noexcept {
    try {
      c_.await(c_.reducing());
      c_.await(c_.compute());
    } catch (...) {  // what went wrong has been thrown
    }
    c_.release_memory();
    c_.memory = nullptr;
    c_.memory_is_communicators = false;
    c_.units.clear();
    c_.peak_bytes = 0;
    c_.materialized = false;
  }

  /// value(info, index) for each element this rank holds; index counts in the whole tensor, of
  /// which a sliced one is a part, so that values do not depend on the mesh. Frozen tensors of
  /// types that floats cannot set keep the values they hold.
  template <class Value>
  void generate(Value&& value) {
    if constexpr (B::holds_memory) {
      std::vector<float> part;
      for (const TensorRecord& tensor : c_.registry.tensors()) {
        if (!settable(tensor.info.dtype)) {
          require_memory(tensor, tensor.handle.data());
          take(tensor, tensor.handle.data(), {0, tensor.elements});
          continue;
        }
        const layout::Range weights = states_.held(State::parameter(), tensor);
        fill(State::parameter(), tensor, weights, part, value);
        if (states_.has_master(tensor)) {
          fill(State::master(), tensor, states_.held(State::master(), tensor), part, value);
        }
      }
    }
    finish();
  }

  /// The same by functions that run in the backend: `of(info)` gives a tensor's.
  template <class Of>
  void generate_in_place(Of&& of) {
    if constexpr (B::holds_memory) {
      for (const TensorRecord& tensor : c_.registry.tensors()) {
        if (!settable(tensor.info.dtype)) {
          require_memory(tensor, tensor.handle.data());
          take(tensor, tensor.handle.data(), {0, tensor.elements});
          continue;
        }
        const auto value = of(tensor.info);
        if (states_.is_split(tensor)) {
          run_in_place<UpperHalf>(State::parameter(), tensor, value);
          run_in_place<LowerHalf>(State::master(), tensor, value);
          continue;
        }
        if (tensor.info.dtype == DType::bf16) {
          run_in_place<Rounded>(State::parameter(), tensor, value);
        } else {
          run_in_place<Kept>(State::parameter(), tensor, value);
        }
        if (states_.has_master(tensor)) run_in_place<Kept>(State::master(), tensor, value);
      }
    }
    finish();
  }

  void take_from_tensors() {
    if constexpr (B::holds_memory) {
      for (const TensorRecord& tensor : c_.registry.tensors()) {
        require_memory(tensor, tensor.handle.data());
        take(tensor, tensor.handle.data(), {0, tensor.elements});
      }
    }
    finish();
  }

  /// Collective: `root`'s tensors go to all ranks with its slices, one at a time.
  void take_from_rank(int root) {
    if (root < 0 || root >= c_.mesh_shape.data_ranks()) {
      detail::fail("tessera: from_rank(", root, "): there are ", c_.mesh_shape.data_ranks(),
                   " ranks");
    }
    if constexpr (B::holds_memory) {
      std::uint64_t largest = 0;
      for (const TensorRecord& tensor : c_.registry.tensors()) {
        largest = std::max(largest, tensor.elements * size_of(tensor.info.dtype));
      }
      const Staging<B> staging(c_.backend, std::min(largest, kStagingBytes));
      for (const TensorRecord& tensor : c_.registry.tensors()) {
        take_from_rank(root, tensor, staging.data());
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
      part[i] = value(tensor.info, tensor.info.slice.whole_index(range.begin + i));
    }
    states_.write(state, tensor, part);
  }

  template <class Stored, class Value>
  void run_in_place(State state, const TensorRecord& tensor, const Value& value) {
    const layout::Range range = states_.held(state, tensor);
    auto* const to = reinterpret_cast<typename Stored::element*>(states_.address(state, tensor));
    c_.backend.for_each(c_.compute(), range.size(),
                        SetInPlace<Value, Stored>{value, tensor.info.slice, range.begin, to});
  }

  void take_from_rank(int root, const TensorRecord& tensor, std::byte* staging) {
    const std::uint64_t width = size_of(tensor.info.dtype);
    const auto* from = static_cast<const std::byte*>(tensor.handle.data());
    const int root_of_group = root % c_.world();
    const int root_replica = root / c_.world();
    if (c_.mesh_shape.data_rank(c_.place) == root) require_memory(tensor, from);
    const std::uint64_t most = kStagingBytes / width;  // elements that pass at once
    for (std::uint64_t begin = 0;; begin += most) {
      const layout::Range part{begin, std::min(begin + most, tensor.elements)};
      const std::uint64_t bytes = part.size() * width;
      if (c_.mesh_shape.data_rank(c_.place) == root) {
        c_.backend.write(c_.reducing(), staging, from + begin * width, bytes);
      }
      const CollectiveTag tag{CollectiveKind::broadcast, tensor.info.name};
      if (c_.replicas() > 1 && c_.rank() == root_of_group) {
        c_.replica_comm.broadcast(c_.reducing(), tag, staging, bytes, root_replica);
      }
      c_.reduce_comm.broadcast(c_.reducing(), tag, staging, bytes, root_of_group);
      c_.await(c_.reducing());
      c_.check();
      take(tensor, staging, part);
      if (part.end == tensor.elements) return;
    }
  }

  // What this rank holds of the elements `of` of a tensor, which lie at `data`: memory of the
  // caller's or of the backend's.
  void take(const TensorRecord& tensor, const void* data, layout::Range of) {
    const std::uint64_t width = size_of(tensor.info.dtype);
    const layout::Range held = states_.held(State::parameter(), tensor);
    const layout::Range part{std::max(held.begin, of.begin), std::min(held.end, of.end)};
    if (part.begin >= part.end) return;
    require_memory(tensor, data);
    std::byte* weights = states_.address(State::parameter(), tensor);
    c_.backend.write(c_.compute(), weights + (part.begin - held.begin) * width,
                     static_cast<const std::byte*>(data) + (part.begin - of.begin) * width,
                     part.size() * width);
    if (!states_.has_master(tensor) || states_.is_split(tensor)) return;
    // (The lower half of what a bf16 holds is zero, as that memory is.)
    const layout::Range master = states_.held(State::master(), tensor);
    const layout::Range begun{std::max(master.begin, part.begin), std::min(master.end, part.end)};
    if (begun.begin >= begun.end) return;
    auto* to = reinterpret_cast<float*>(states_.address(State::master(), tensor));
    c_.backend.transform(
        c_.compute(), begun.size(), Widen{},
        In<bf16>{reinterpret_cast<const bf16*>(weights) + (begun.begin - held.begin)},
        Out<float>{to + (begun.begin - master.begin)});
  }

  // From here on a tensor is only there inside a lease.
  void finish() {
    for (const TensorRecord& tensor : c_.registry.tensors()) {
      if (tensor.handle.rebindable()) tensor.handle.rebind(nullptr);
    }
    c_.note_update();
    c_.materialized = true;  // not before: an initialiser that throws leaves nothing to lease
  }

  Context<Bk>& c_;
  States<Bk>& states_;
};

}  // namespace tessera::engine

// What add_unit records: units, their tensors, names, ties. Arithmetic only, no tensor memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/comm/mesh_shape.hpp"
#include "tessera/engine/options.hpp"
#include "tessera/error.hpp"
#include "tessera/exact/classify.hpp"
#include "tessera/layout/flat.hpp"
#include "tessera/policy/description.hpp"
#include "tessera/tensor/handle.hpp"

namespace tessera {

/// A unit of a Shard, as add_unit returns it.
struct Unit {
  std::uint32_t index = 0;
  friend constexpr bool operator==(const Unit&, const Unit&) = default;
};

/// What initialisers, plans and errors know of a tensor.
struct TensorInfo {
  std::string name;  ///< unique within the Shard
  std::string unit;
  Shape shape;
  DType dtype = DType::f32;
  bool trainable = true;
  std::uint32_t id = 0;   ///< in the order of registration
  SlicePlace slice = {};  ///< of what larger tensor it is a part; see sliced(...)
  bool is_sliced = false;
};

}  // namespace tessera

namespace tessera::engine {

struct TensorRecord {
  TensorInfo info;
  TensorHandle handle;
  bool decay = true;
  int group = 0;
  std::uint32_t unit = 0;
  std::uint64_t elements = 0;
  layout::TensorPlacement placement;
};

struct UnitRecord {
  std::string name;
  UnitOptions options;
  std::vector<std::uint32_t> tensors;         ///< those it owns
  std::vector<std::uint32_t> borrowed_units;  ///< owners of tensors it shares: leased with it
  layout::UnitLayout layout;
};

class Registry {
 public:
  explicit Registry(const PrecisionDescription& precision) : precision_(precision) {}

  const std::vector<UnitRecord>& units() const { return units_; }
  const std::vector<TensorRecord>& tensors() const { return tensors_; }

  /// Begins a unit; its tensors follow by add_tensor. Error when the name is taken.
  std::uint32_t begin_unit(std::string_view name, const UnitOptions& options) {
    for (const UnitRecord& unit : units_) {
      if (unit.name == name) {
        detail::fail("tessera: add_unit: there is already a unit named '", name,
                     "': give each unit a name of its own");
      }
    }
    if (options.override_reshard && options.reshard == Reshard::never) {
      detail::fail("tessera: add_unit: unit '", name,
                   "' cannot reshard never: its pieces change at each step; use after_step");
    }
    if (!detail::is_zero_or_normal(options.gradient_divisor)) {
      detail::fail("tessera: add_unit: unit '", name,
                   "': gradient_divisor must be 0 (not replaced) or positive, finite and normal, ",
                   "not ", options.gradient_divisor);
    }
    UnitRecord& unit = units_.emplace_back();
    unit.name = std::string(name);
    unit.options = options;
    return static_cast<std::uint32_t>(units_.size() - 1);
  }

  /// A tensor the last unit holds. Seen before: in this unit it is listed once; in another it is
  /// tied, one parameter that stays with the first unit. Error when what is said of it now is not
  /// what was said then; what is not said now holds as it was.
  void add_tensor(TensorHandle&& handle, TensorOptions&& options) {
    UnitRecord& unit = units_.back();
    const auto unit_index = static_cast<std::uint32_t>(units_.size() - 1);
    for (const TensorRecord& known : tensors_) {
      if (!(known.handle == handle)) continue;
      check_tie(known, handle, options, unit.name);
      if (known.unit != unit_index) borrow(unit, known.unit);
      return;
    }
    std::string name =
        unit.name + "." +
        (options.name.empty() ? std::to_string(unit.tensors.size()) : std::move(options.name));
    check_tensor(handle, options, name);
    const auto id = static_cast<std::uint32_t>(tensors_.size());
    const auto elements = static_cast<std::uint64_t>(handle.shape().size());
    TensorInfo info{name, unit.name, handle.shape(), handle.dtype(), options.trainable, id};
    if (options.slice) {
      info.slice = place_of(*options.slice, handle.shape(), name.c_str());
      info.is_sliced = true;
    }
    tensors_.push_back({std::move(info),
                        std::move(handle),
                        options.decay,
                        options.group,
                        unit_index,
                        elements,
                        {}});
    unit.tensors.push_back(id);
  }

  /// Takes back a unit whose registration failed half-way.
  void drop_last_unit() {
    for (std::size_t n = units_.back().tensors.size(); n > 0; --n) tensors_.pop_back();
    units_.pop_back();
  }

  /// Computes every unit's layout over a mesh.
  void lay_out(const MeshShape& mesh) {
    std::vector<layout::TensorExtent> extents;
    std::vector<layout::TensorPlacement> placements;
    for (UnitRecord& unit : units_) {
      extents.clear();
      for (std::uint32_t id : unit.tensors) {
        const TensorRecord& tensor = tensors_[id];
        extents.push_back({tensor.elements, tensor.info.dtype, tensor.info.trainable});
      }
      placements.assign(extents.size(), {});
      unit.layout = layout::lay_out(extents, mesh.shard, placements, mesh.replicate);
      for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
        tensors_[unit.tensors[i]].placement = placements[i];
      }
    }
  }

  const UnitRecord& unit(std::uint32_t index) const { return units_[index]; }
  const TensorRecord& tensor(std::uint32_t id) const { return tensors_[id]; }
  const layout::GroupLayout& group_of(const TensorRecord& tensor) const {
    return units_[tensor.unit].layout.groups[tensor.placement.group];
  }

  /// The tensor with this identity (see TensorHandle). Error when it was never registered.
  std::uint32_t find(const void* identity) const {
    for (const TensorRecord& tensor : tensors_) {
      if (tensor.handle.identity() == identity) return tensor.info.id;
    }
    detail::fail("tessera: this tensor is in no unit: pass the object that was given to add_unit");
  }

 private:
  static void borrow(UnitRecord& unit, std::uint32_t owner) {
    for (std::uint32_t known : unit.borrowed_units) {
      if (known == owner) return;
    }
    unit.borrowed_units.push_back(owner);
  }

  static void check_tie(const TensorRecord& known, const TensorHandle& handle,
                        const TensorOptions& options, const std::string& unit) {
    const auto differs = [&](const auto& now, const auto& then) {
      detail::fail("tessera: add_unit: unit '", unit, "' has the tensor '", known.info.name,
                   "' of unit '", known.info.unit, "' too, as ", now, ", but there it is ", then,
                   ": a tied tensor is one parameter, so say the same of it in both units");
    };
    if (!(handle.shape() == known.info.shape)) {
      differs(detail::concat("shape ", handle.shape()), known.info.shape);
    }
    if (handle.dtype() != known.info.dtype) differs(handle.dtype(), known.info.dtype);
    if (!options.trainable && known.info.trainable) differs("frozen", "trainable");
    if (!options.decay && known.decay) differs("no_decay", "decayed");
    if (options.slice &&
        !(place_of(*options.slice, handle.shape(), known.info.name.c_str()) == known.info.slice &&
          known.info.is_sliced)) {
      differs("another slice", known.info.is_sliced ? "this one" : "all of a tensor");
    }
    if (options.grouped && options.group != known.group) {
      differs(detail::concat("of parameter group ", options.group),
              detail::concat("of group ", known.group));
    }
  }

  void check_tensor(const TensorHandle& handle, const TensorOptions& options,
                    const std::string& name) const {
    for (const TensorRecord& known : tensors_) {
      if (known.info.name == name) {
        detail::fail("tessera: add_unit: there is already a tensor named '", name,
                     "': give each tensor of a unit a name of its own");
      }
    }
    if (!handle.contiguous()) {
      detail::fail("tessera: tensor '", name, "' of shape ", handle.shape(),
                   " is not contiguous: make it contiguous before add_unit");
    }
    if (options.trainable && !precision_.trains(handle.dtype())) {
      detail::fail("tessera: tensor '", name, "' is ", handle.dtype(), ", but precision ",
                   precision_.name, " trains ", precision_.parameter,
                   precision_.parameter == DType::f32 ? "" : " and f32",
                   ": change its type, the policy, or pass it as frozen(tensor)");
    }
  }

  PrecisionDescription precision_;
  std::vector<UnitRecord> units_;
  std::vector<TensorRecord> tensors_;
};

}  // namespace tessera::engine

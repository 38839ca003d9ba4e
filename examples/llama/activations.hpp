// What the model keeps of a forward pass, and the memory it computes in: laid out once, ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "config.hpp"
#include "device_arena.hpp"
#include "kernels.hpp"

namespace llama {

/// What a layer computes again in backward, to keep less. Ordered by memory: the most first.
enum class Recompute : std::uint8_t {
  nothing,
  elementwise,  ///< the norms' and SwiGLU's outputs, in passes that backward makes anyway
  block,        ///< all but its input
};

/// Memory of others that a layer may use from its forward, or that before it, to the end of its
/// backward; by layer, and empty where there is none.
using LentMemory = std::vector<std::span<std::byte>>;

/// Takes from what is lent as far as that goes, then from the arena.
class LentFirst {
 public:
  LentFirst(DeviceArena& arena, std::span<std::byte> lent) : arena_(arena), lent_(lent) {}

  template <class T>
  T* take(std::size_t count) {
    const std::size_t bytes = DeviceArena::rounded(count * sizeof(T));
    if (bytes > lent_.size()) return arena_.take<T>(count);
    T* const taken = reinterpret_cast<T*>(lent_.data());
    lent_ = lent_.subspan(bytes);
    return taken;
  }

 private:
  DeviceArena& arena_;
  std::span<std::byte> lent_;
};

/// What one layer keeps.
template <class T>
struct LayerActivations {
  T* qkv = nullptr;          ///< [rows, qkv], queries and keys rotated
  T* attended = nullptr;     ///< [rows, attention]
  float* softmax = nullptr;  ///< [heads, rows]: see AttentionShape::statistics
  T* middle = nullptr;   ///< [rows, dim]: the residual stream between attention and feed-forward
  T* gate_up = nullptr;  ///< [rows, 2 ff]
  float* attention_rstd = nullptr;  ///< [rows]
  float* ffn_rstd = nullptr;        ///< [rows]
  // Recompute::nothing only:
  T* attention_normed = nullptr;  ///< [rows, dim]
  T* ffn_normed = nullptr;        ///< [rows, dim]
  T* swiglu = nullptr;            ///< [rows, ff]

  template <class Arena>
  static LayerActivations carve(Arena& arena, const Config& config, const AttentionShape& shape,
                                Recompute recompute) {
    const std::size_t rows = shape.rows();
    LayerActivations a;
    a.qkv = arena.template take<T>(rows * config.qkv());
    a.attended = arena.template take<T>(rows * config.attention());
    a.softmax = arena.template take<float>(shape.statistics());
    a.middle = arena.template take<T>(rows * config.dim);
    a.gate_up = arena.template take<T>(rows * 2 * config.ff);
    a.attention_rstd = arena.template take<float>(rows);
    a.ffn_rstd = arena.template take<float>(rows);
    if (recompute != Recompute::nothing) return a;
    a.attention_normed = arena.template take<T>(rows * config.dim);
    a.ffn_normed = arena.template take<T>(rows * config.dim);
    a.swiglu = arena.template take<T>(rows * config.ff);
    return a;
  }
};

/// All of a model's activations. The logits, which live between forward and backward, share their
/// place with what the layers compute in before and after.
template <class T>
struct Activations {
  std::vector<Recompute> recompute;         ///< by layer
  std::vector<T*> stream;                   ///< layer l reads [l] and writes [l + 1]: [rows, dim]
  std::vector<LayerActivations<T>> layers;  ///< those of Recompute::block share one
  T* gradient = nullptr;       ///< [rows, dim], of the residual stream where backward is
  T* head_normed = nullptr;    ///< [rows, dim]
  float* head_rstd = nullptr;  ///< [rows]
  float* norm_sums = nullptr;  ///< RmsNormWorkspace
  float* cosines = nullptr;
  float* sines = nullptr;
  std::int32_t* tokens = nullptr;   ///< [rows]
  std::int32_t* targets = nullptr;  ///< [rows]
  TokenSort::Sorted sorted{};
  std::int32_t* iota = nullptr;
  void* sort_workspace = nullptr;
  std::size_t sort_bytes = 0;
  float* losses = nullptr;  ///< [rows]
  double* loss = nullptr;   ///< [1]
  T* logits = nullptr;      ///< [rows, vocabulary]
  // In the place of the logits:
  T* normed = nullptr;             ///< [rows, dim]: a norm's output or its gradient
  T* hidden = nullptr;             ///< [rows, ff]: SwiGLU's output or its gradient
  T* qkv_gradient = nullptr;       ///< [rows, qkv]
  T* attended_gradient = nullptr;  ///< [rows, attention]
  void* attention_workspace = nullptr;

  static Activations carve(DeviceArena& arena, const Config& config, const AttentionShape& shape,
                           std::size_t attention_bytes, std::vector<Recompute> recompute,
                           const LentMemory& lent) {
    const std::size_t rows = shape.rows();
    Activations a;
    a.recompute = std::move(recompute);
    std::vector<LentFirst> of_layers;
    for (std::size_t l = 0; l < config.layers; ++l) {
      of_layers.emplace_back(arena, l < lent.size() ? lent[l] : std::span<std::byte>());
      a.stream.push_back(of_layers[l].template take<T>(rows * config.dim));
    }
    a.stream.push_back(arena.take<T>(rows * config.dim));
    a.gradient = arena.take<T>(rows * config.dim);
    a.head_normed = arena.take<T>(rows * config.dim);
    a.head_rstd = arena.take<float>(rows);
    a.norm_sums = arena.take<float>(RmsNormWorkspace::floats(config.dim));
    a.cosines = arena.take<float>(shape.sequence * shape.head_dim / 2);
    a.sines = arena.take<float>(shape.sequence * shape.head_dim / 2);
    a.tokens = arena.take<std::int32_t>(rows);
    a.targets = arena.take<std::int32_t>(rows);
    a.sorted = {arena.take<std::int32_t>(rows), arena.take<std::int32_t>(rows)};
    a.iota = arena.take<std::int32_t>(rows);
    a.sort_bytes = TokenSort::workspace_bytes(rows);
    a.sort_workspace = arena.take<std::byte>(a.sort_bytes);
    a.losses = arena.take<float>(rows);
    a.loss = arena.take<double>(1);
    std::optional<LayerActivations<T>> shared;
    for (std::size_t l = 0; l < config.layers; ++l) {
      const Recompute of_layer = a.recompute[l];
      if (of_layer == Recompute::block) {
        if (!shared) shared = LayerActivations<T>::carve(arena, config, shape, of_layer);
        a.layers.push_back(*shared);
      } else {
        a.layers.push_back(LayerActivations<T>::carve(of_layers[l], config, shape, of_layer));
      }
    }
    const std::size_t mark = arena.mark();
    a.logits = arena.take<T>(rows * config.vocabulary);
    arena.back_to(mark);
    a.normed = arena.take<T>(rows * config.dim);
    a.hidden = arena.take<T>(rows * config.ff);
    a.qkv_gradient = arena.take<T>(rows * config.qkv());
    a.attended_gradient = arena.take<T>(rows * config.attention());
    a.attention_workspace = arena.take<std::byte>(attention_bytes);
    arena.settle();
    return a;
  }
};

/// Bytes of the activations under a choice for each layer, beside what is lent.
template <class T>
std::size_t activation_bytes(const Config& config, const AttentionShape& shape,
                             std::size_t attention_bytes, const std::vector<Recompute>& recompute,
                             const LentMemory& lent) {
  DeviceArena counted;
  Activations<T>::carve(counted, config, shape, attention_bytes, recompute, lent);
  return counted.most_used();
}

/// The choice that computes the least again within `budget` bytes: first every layer keeps all but
/// the element-wise outputs as far as it goes, then also those. The last layers first: their
/// backward is next, and what they keep is given up soonest. Empty where even the least is too
/// much.
template <class T>
std::vector<Recompute> choose_recompute(const Config& config, const AttentionShape& shape,
                                        std::size_t attention_bytes, const LentMemory& lent,
                                        std::size_t budget) {
  std::vector<Recompute> choice(config.layers, Recompute::block);
  const auto bytes = [&] {
    return activation_bytes<T>(config, shape, attention_bytes, choice, lent);
  };
  if (bytes() > budget) return {};
  for (const Recompute better : {Recompute::elementwise, Recompute::nothing}) {
    for (std::size_t l = config.layers; l-- > 0;) {
      const Recompute before = choice[l];
      choice[l] = better;
      if (bytes() <= budget) continue;
      choice[l] = before;
      break;
    }
  }
  return choice;
}

}  // namespace llama

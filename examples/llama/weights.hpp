// The tensors of the model: names, shapes and first values, and pointers by which kernels find
// them. A pointer is null outside a lease of its unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include <tessera/exact/random.hpp>

#include "config.hpp"

namespace llama {

template <class T>
struct LayerWeights {
  T* attention_norm = nullptr;  ///< [dim]
  T* qkv = nullptr;             ///< [qkv, dim]: all heads' queries, then keys, then values
  T* out = nullptr;             ///< [dim, attention]
  T* ffn_norm = nullptr;        ///< [dim]
  T* gate_up = nullptr;         ///< [2 ff, dim]: gates, then ups
  T* down = nullptr;            ///< [dim, ff]
};

template <class T>
struct HeadWeights {
  T* norm = nullptr;    ///< [dim]
  T* output = nullptr;  ///< [vocabulary, dim]
};

template <class T>
struct Weights {
  T* embedding = nullptr;  ///< [vocabulary, dim]
  std::vector<LayerWeights<T>> layers;
  HeadWeights<T> head;
};

/// A gradient buffer, and whether it holds something that must be added to.
template <class T>
struct Gradient {
  T* data = nullptr;
  bool accumulate = false;
};

template <class T>
struct LayerGradients {
  Gradient<T> attention_norm, qkv, out, ffn_norm, gate_up, down;
};

template <class T>
struct HeadGradients {
  Gradient<T> norm, output;
};

/// What a tensor starts as: a function of its number and an element's place in the whole tensor, so
/// that the model is the same however it is sharded.
struct FirstValue {
  float mean = 0.0f;
  float deviation = 0.0f;
  std::uint64_t seed = 0;
  std::uint32_t tensor = 0;  ///< in the order of registration

  TESSERA_HD float operator()(std::uint64_t index) const {
    if (deviation == 0.0f) return mean;
    return mean + deviation * tessera::random_normal(seed, tensor, index);
  }
};

}  // namespace llama

#include "device.cuh"
#include "kernels.hpp"

namespace llama {
namespace {

constexpr std::size_t kThreads = 256;

__device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// Where a thread's pack lies: rows of ff elements of the output, of 2 ff of the input.
struct Place {
  std::size_t gate, up, out;
  bool inside;

  __device__ Place(std::size_t count, std::size_t ff) {
    const std::size_t pack = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    out = pack * kPack;
    inside = out < count;
    const std::size_t row = out / ff;
    gate = out + row * ff;
    up = gate + ff;
  }
};

template <class T>
__global__ void forward_kernel(std::size_t count, std::size_t ff, const T* gate_up, T* out) {
  const Place at(count, ff);
  if (!at.inside) return;
  const Pack<T> gate = Pack<T>::load(gate_up + at.gate);
  Pack<T> up = Pack<T>::load(gate_up + at.up);
#pragma unroll
  for (int i = 0; i < kPack; ++i) up[i] *= gate[i] * sigmoid(gate[i]);
  up.store(out + at.out);
}

template <class T, bool again>
__global__ void backward_kernel(std::size_t count, std::size_t ff, T* gate_up, T* out_gradient) {
  const Place at(count, ff);
  if (!at.inside) return;
  Pack<T> gate = Pack<T>::load(gate_up + at.gate);
  Pack<T> up = Pack<T>::load(gate_up + at.up);
  Pack<T> gradient = Pack<T>::load(out_gradient + at.out);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float s = sigmoid(gate[i]);
    const float silu = gate[i] * s;
    const float of_gate = gradient[i] * up[i] * (s + silu * (1.0f - s));
    const float of_up = gradient[i] * silu;
    gradient[i] = silu * up[i];
    gate[i] = of_gate;
    up[i] = of_up;
  }
  gate.store(gate_up + at.gate);
  up.store(gate_up + at.up);
  if constexpr (again) gradient.store(out_gradient + at.out);
}

}  // namespace

template <class T>
void swiglu_forward(cudaStream_t stream, std::size_t rows, std::size_t ff, const T* gate_up,
                    T* out) {
  launch("swiglu_forward", stream, forward_kernel<T>, divided_up(rows * ff, kThreads * kPack),
         kThreads, rows * ff, ff, gate_up, out);
}

template <class T>
void swiglu_backward(cudaStream_t stream, std::size_t rows, std::size_t ff, T* gate_up,
                     T* out_gradient, bool again) {
  launch("swiglu_backward", stream, again ? backward_kernel<T, true> : backward_kernel<T, false>,
         divided_up(rows * ff, kThreads * kPack), kThreads, rows * ff, ff, gate_up, out_gradient);
}

#define INSTANTIATE(T)                                                                \
  template void swiglu_forward(cudaStream_t, std::size_t, std::size_t, const T*, T*); \
  template void swiglu_backward(cudaStream_t, std::size_t, std::size_t, T*, T*, bool);
LLAMA_FOR_ELEMENTS(INSTANTIATE)

}  // namespace llama

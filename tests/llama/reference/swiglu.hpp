// out [rows, ff] = silu(gate) * up; a row of gate_up is ff gates, then ff ups.
#pragma once

#include <cmath>
#include <cstddef>

namespace llama_reference {

template <class Real>
Real sigmoid(Real x) {
  return Real{1} / (Real{1} + std::exp(-x));
}

template <class Real>
void swiglu_forward(std::size_t rows, std::size_t ff, const Real* gate_up, Real* out) {
  for (std::size_t row = 0; row < rows; ++row) {
    const Real* gate = gate_up + row * 2 * ff;
    const Real* up = gate + ff;
    for (std::size_t i = 0; i < ff; ++i) out[row * ff + i] = gate[i] * sigmoid(gate[i]) * up[i];
  }
}

template <class Real>
void swiglu_backward(std::size_t rows, std::size_t ff, const Real* gate_up, const Real* dout,
                     Real* dgate_up) {
  for (std::size_t row = 0; row < rows; ++row) {
    const Real* gate = gate_up + row * 2 * ff;
    const Real* up = gate + ff;
    Real* dgate = dgate_up + row * 2 * ff;
    Real* dup = dgate + ff;
    for (std::size_t i = 0; i < ff; ++i) {
      const Real s = sigmoid(gate[i]);
      const Real slope = s * (Real{1} + gate[i] * (Real{1} - s));
      dgate[i] = dout[row * ff + i] * up[i] * slope;
      dup[i] = dout[row * ff + i] * gate[i] * s;
    }
  }
}

}  // namespace llama_reference

// y [rows, out] += x [rows, in] w^T, with w [out, in], and its derivatives. Everything is added to
// what is there: a residual connection and a tied weight need no more than that.
#pragma once

#include <cstddef>

#include "matmul.hpp"

namespace llama_reference {

struct LinearShape {
  std::size_t rows;
  std::size_t in;
  std::size_t out;
};

template <class Real>
void add_linear(LinearShape s, const Real* x, const Real* w, Real* y) {
  add_product<Real>(s.rows, s.out, s.in, {x}, {w, true}, y);
}

/// dx += dy w
template <class Real>
void add_linear_input_gradient(LinearShape s, const Real* dy, const Real* w, Real* dx) {
  add_product<Real>(s.rows, s.in, s.out, {dy}, {w}, dx);
}

/// dw += dy^T x
template <class Real>
void add_linear_weight_gradient(LinearShape s, const Real* dy, const Real* x, Real* dw) {
  add_product<Real>(s.out, s.in, s.rows, {dy, true}, {x}, dw);
}

}  // namespace llama_reference

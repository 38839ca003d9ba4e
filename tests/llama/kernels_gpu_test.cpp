// Each kernel of examples/llama against the reference in double, fp32 and bf16, odd sizes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "device_values.hpp"
#include "kernels.hpp"
#include "matmul.hpp"
#include "reference.hpp"

using namespace llama_test;
namespace ref = llama_reference;
using tessera::bf16;

namespace {

const cudaStream_t kStream = cudaStreamPerThread;

std::vector<std::int32_t> signed_tokens(const ref::Tokens& from) {
  return {from.begin(), from.end()};
}

}  // namespace

TEST_CASE_TEMPLATE("rms_norm: output, input gradient with and without a residual, weight gradient",
                   T, float, bf16) {
  // Widths at and beyond what one, two and four warps take; so many rows that blocks take several.
  for (const std::size_t dim : {8u, 24u, 264u, 1032u, 2048u, 2056u, 4104u, 8192u}) {
    const std::size_t many = dim <= 1032 ? 2500 : dim <= 2056 ? 1200 : 600;
    for (const std::size_t rows : {std::size_t{1}, std::size_t{7}, many}) {
      CAPTURE(dim);
      CAPTURE(rows);
      const Input<T> x(rows * dim, 1, 2.0), weight(dim, 2), out_gradient(rows * dim, 3),
          before(rows * dim, 4), weight_before(dim, 5, 10.0);
      const Device<T> out(rows * dim);
      const Device<float> rstd(rows), sums(llama::RmsNormWorkspace::floats(dim));
      llama::rms_norm_forward(kStream, rows, dim, 1e-5f, x.device.data(), weight.device.data(),
                              out.data(), rstd.data());
      Doubles inverse(rows), normed(rows * dim);
      ref::rms_norm_forward(rows, dim, x.values.data(), weight.values.data(), inverse.data(),
                            normed.data());
      CHECK(error(out.doubles(), normed) < tolerance<T>());
      CHECK(error(rstd.doubles(), inverse) < 3e-6);

      Doubles gradient = before.values, weight_gradient(dim);
      ref::rms_norm_backward(rows, dim, x.values.data(), weight.values.data(), inverse.data(),
                             out_gradient.values.data(), gradient.data(), gradient.data(),
                             weight_gradient.data());
      const Device<T> again(rows * dim), of_weight(dim);
      llama::rms_norm_backward(kStream, rows, dim, x.device.data(), weight.device.data(),
                               rstd.data(), out_gradient.device.data(), before.device.data(),
                               again.data(), of_weight.data(), false, {sums.data()});
      CHECK(error(before.device.doubles(), gradient) < tolerance<T>());
      CHECK(error(of_weight.doubles(), weight_gradient) < tolerance<T>());
      CHECK(error(again.doubles(), out.doubles()) < tolerance<T>());

      Doubles alone(rows * dim);
      Doubles added = weight_before.values;
      ref::rms_norm_backward(rows, dim, x.values.data(), weight.values.data(), inverse.data(),
                             out_gradient.values.data(), alone.data(), alone.data(), added.data());
      const Device<T> of_x(rows * dim);
      llama::rms_norm_backward_only(kStream, rows, dim, x.device.data(), weight.device.data(),
                                    rstd.data(), out_gradient.device.data(), of_x.data(),
                                    weight_before.device.data(), true, {sums.data()});
      CHECK(error(of_x.doubles(), alone) < tolerance<T>());
      CHECK(error(weight_before.device.doubles(), added) < tolerance<T>());
    }
  }
}

TEST_CASE_TEMPLATE("rope: forward and backward, of queries and keys only", T, float, bf16) {
  for (const std::size_t head_dim : {16u, 64u, 128u}) {
    const ref::AttentionShape shape{2, 37, 6, 2, head_dim};
    const Input<T> forward(shape.rows() * shape.packed(), 1),
        backward(shape.rows() * shape.packed(), 2);
    const Device<float> cosines(shape.seq * head_dim / 2), sines(shape.seq * head_dim / 2);
    llama::fill_rope_table(kStream, shape.seq, head_dim, 500000.0f, cosines.data(), sines.data());
    const auto turn = [&](const Input<T>& of, bool back) {
      llama::rope(kStream, shape.rows(), shape.seq, shape.heads + shape.kv_heads, head_dim,
                  shape.packed(), cosines.data(), sines.data(), back, of.device.data());
    };
    turn(forward, false);
    turn(backward, true);
    Doubles turned = forward.values, turned_back = backward.values;
    ref::rope_forward(shape, turned.data());
    ref::rope_backward(shape, turned_back.data());
    CHECK(error(forward.device.doubles(), turned) < tolerance<T>());
    CHECK(error(backward.device.doubles(), turned_back) < tolerance<T>());
  }
}

TEST_CASE_TEMPLATE("swiglu: output, gradient in place, and the output again", T, float, bf16) {
  for (const std::size_t ff : {8u, 40u, 1536u}) {
    const std::size_t rows = 53;
    const Input<T> gate_up(rows * 2 * ff, 1, 2.0), out_gradient(rows * ff, 2);
    const Device<T> out(rows * ff);
    Doubles expected(rows * ff), gradient(rows * 2 * ff);
    ref::swiglu_forward(rows, ff, gate_up.values.data(), expected.data());
    ref::swiglu_backward(rows, ff, gate_up.values.data(), out_gradient.values.data(),
                         gradient.data());
    llama::swiglu_forward(kStream, rows, ff, gate_up.device.data(), out.data());
    CHECK(error(out.doubles(), expected) < tolerance<T>());
    llama::swiglu_backward(kStream, rows, ff, gate_up.device.data(), out_gradient.device.data(),
                           true);
    CHECK(error(gate_up.device.doubles(), gradient) < tolerance<T>());
    CHECK(error(out_gradient.device.doubles(), expected) < tolerance<T>());
  }
}

TEST_CASE_TEMPLATE("cross entropy: losses, gradients in place, targets that count nothing", T,
                   float, bf16) {
  // Rows that are read twice, and those that a multiprocessor holds: with nothing in registers,
  // with a little, as much as there is room for, more, and the vocabulary of Llama 3.
  for (const std::size_t vocabulary :
       {37u, 256u, 8200u, 32776u, 57352u, 65536u, 65544u, 114696u, 128256u, 131072u, 131080u}) {
    const std::size_t rows = 5;
    CAPTURE(vocabulary);
    const Input<T> logits(rows * vocabulary, 1, 3.0);
    ref::Tokens targets = ref::random_tokens(rows, 2, vocabulary);
    targets[0] = static_cast<std::uint32_t>(vocabulary - 1);
    targets[1] = 0;
    std::vector<std::int32_t> some = signed_tokens(targets);
    some[3] = -1;
    const Device<std::int32_t> on_device(some);
    const Device<float> losses(rows);
    Doubles expected(rows), gradient(rows * vocabulary);
    (void)ref::cross_entropy_loss(rows, vocabulary, logits.values.data(), targets.data(),
                                  expected.data());
    ref::cross_entropy_backward(rows, vocabulary, logits.values.data(), targets.data(),
                                gradient.data());
    expected[3] = 0.0;
    for (std::size_t i = 0; i < vocabulary; ++i) gradient[3 * vocabulary + i] = 0.0;
    llama::cross_entropy(kStream, rows, vocabulary, on_device.data(), 0.0f, logits.device.data(),
                         losses.data());
    CHECK(error(logits.device.doubles(), logits.values) == 0.0);  // a loss alone changes nothing
    llama::cross_entropy(kStream, rows, vocabulary, on_device.data(), 1.0f / rows,
                         logits.device.data(), losses.data());
    CHECK(error(losses.doubles(), expected) < 2e-6);
    CHECK(error(logits.device.doubles(), gradient) < tolerance<T>());
    const Device<double> total(std::vector<double>{100.0});
    llama::add_losses(kStream, rows, losses.data(), total.data());
    double sum = 100.0;
    for (const double loss : expected) sum += loss;
    CHECK(total.host()[0] == doctest::Approx(sum).epsilon(1e-6));
  }
}

TEST_CASE_TEMPLATE("cross entropy: a row's bits are the same wherever it is", T, float, bf16) {
  const std::size_t vocabulary = std::is_same_v<T, float> ? 57352 : 114696;
  const std::size_t few = 7;  // blocks take every 132nd row on an H200, which is another of these
  const std::size_t rows = 600;
  const Input<T> logits(few * vocabulary, 1, 3.0);
  const ref::Tokens tokens = ref::random_tokens(few, 2, vocabulary);
  std::vector<std::int32_t> targets = signed_tokens(tokens);
  targets[4] = -1;
  std::vector<T> repeated(rows * vocabulary);
  std::vector<std::int32_t> repeated_targets(rows);
  const std::vector<T> values = logits.device.host();
  for (std::size_t row = 0; row < rows; ++row) {
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(row % few * vocabulary);
    std::copy_n(from, vocabulary, repeated.begin() + static_cast<std::ptrdiff_t>(row * vocabulary));
    repeated_targets[row] = targets[row % few];
  }
  const Device<T> many(repeated);
  const Device<std::int32_t> few_targets(targets), many_targets(repeated_targets);
  const Device<float> few_losses(few), many_losses(rows);
  llama::cross_entropy(kStream, few, vocabulary, few_targets.data(), 0.5f, logits.device.data(),
                       few_losses.data());
  llama::cross_entropy(kStream, rows, vocabulary, many_targets.data(), 0.5f, many.data(),
                       many_losses.data());
  const std::vector<T> expected = logits.device.host(), got = many.host();
  const std::vector<float> expected_losses = few_losses.host(), losses = many_losses.host();
  std::size_t different = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    different += losses[row] == expected_losses[row % few] ? 0 : 1;
    different += std::memcmp(got.data() + row * vocabulary,
                             expected.data() + row % few * vocabulary, vocabulary * sizeof(T)) == 0
                     ? 0
                     : 1;
  }
  CHECK(different == 0);
}

TEST_CASE_TEMPLATE("embedding: rows, and their gradients in a table written or added to", T, float,
                   bf16) {
  for (const std::size_t dim : {8u, 264u, 4096u}) {
    const std::size_t rows = dim == 264 ? 3 : 301, vocabulary = 50;
    const Input<T> table(vocabulary * dim, 1), gradient(rows * dim, 2), before(vocabulary * dim, 3);
    const ref::Tokens tokens = ref::random_tokens(rows, 4, 40);  // the last ten never occur
    const Device<std::int32_t> on_device(signed_tokens(tokens)), sorted(rows), order(rows),
        iota(rows);
    const std::size_t bytes = llama::TokenSort::workspace_bytes(rows);
    const Device<unsigned char> workspace(bytes);
    const Device<T> out(rows * dim);
    Doubles expected(rows * dim), of_table(vocabulary * dim), added = before.values;
    ref::embedding_forward(rows, dim, tokens.data(), table.values.data(), expected.data());
    ref::embedding_backward(rows, dim, tokens.data(), gradient.values.data(), of_table.data());
    ref::embedding_backward(rows, dim, tokens.data(), gradient.values.data(), added.data());
    llama::embedding_forward(kStream, rows, dim, on_device.data(), table.device.data(), out.data());
    CHECK(error(out.doubles(), expected) == 0.0);
    const llama::TokenSort::Sorted by_token{sorted.data(), order.data()};
    llama::TokenSort::sort(kStream, rows, on_device.data(), by_token, iota.data(), workspace.data(),
                           bytes);
    llama::embedding_backward(kStream, rows, dim, vocabulary, by_token, gradient.device.data(),
                              table.device.data(), false);
    CHECK(error(table.device.doubles(), of_table) < tolerance<T>());
    llama::embedding_backward(kStream, rows, dim, vocabulary, by_token, gradient.device.data(),
                              before.device.data(), true);
    CHECK(error(before.device.doubles(), added) < tolerance<T>());
  }
}

TEST_CASE_TEMPLATE("products: forward, with an addend, both gradients, added or written; odd sizes",
                   T, float, bf16) {
  using llama::Product;
  for (const llama::LinearShape& s :
       {llama::LinearShape{96, 136, 72}, {97, 31, 45}, {37, 8, 129}, {1, 3, 5}}) {
    CAPTURE(s.rows);
    const ref::LinearShape shape{s.rows, s.in, s.out};
    const Input<T> x(s.rows * s.in, 1), w(s.in * s.out, 2), y(s.rows * s.out, 3),
        before(s.in * s.out, 4);
    llama::Matmuls products(
        kStream, std::is_same_v<T, float> ? llama::MatmulElement::f32 : llama::MatmulElement::bf16);
    if (std::is_same_v<T, bf16>) {
      products.tune({{Product::forward, s}, {Product::weight_add, s}}, {true, 96, 0.01, {}});
    }
    const Device<T> out(s.rows * s.out), of_x(s.rows * s.in), of_w(s.in * s.out);
    Doubles expected(s.rows * s.out);
    ref::add_linear(shape, x.values.data(), w.values.data(), expected.data());
    products.run(Product::forward, s, x.device.data(), w.device.data(), out.data());
    CHECK(error(out.doubles(), expected) < tolerance<T>());
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += y.values[i];
    products.run(Product::forward_add, s, x.device.data(), w.device.data(), out.data(),
                 y.device.data());
    CHECK(error(out.doubles(), expected) < tolerance<T>());
    Doubles gradient(s.rows * s.in), of_weight(s.in * s.out), added = before.values;
    ref::add_linear_input_gradient(shape, y.values.data(), w.values.data(), gradient.data());
    ref::add_linear_weight_gradient(shape, y.values.data(), x.values.data(), of_weight.data());
    ref::add_linear_weight_gradient(shape, y.values.data(), x.values.data(), added.data());
    products.run(Product::input_gradient, s, y.device.data(), w.device.data(), of_x.data());
    CHECK(error(of_x.doubles(), gradient) < tolerance<T>());
    products.run(Product::weight_gradient, s, y.device.data(), x.device.data(), of_w.data());
    CHECK(error(of_w.doubles(), of_weight) < tolerance<T>());
    products.run(Product::weight_add, s, y.device.data(), x.device.data(), before.device.data());
    CHECK(error(before.device.doubles(), added) < tolerance<T>());
  }
}

// The model's matrix products by cuBLASLt, each shape's algorithm chosen once and kept.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace llama {

/// The three products of a linear layer y[rows, out] = x[rows, in] w[out, in]^T. All matrices are
/// row-major and dense.
enum class Product : std::uint8_t {
  forward,          ///< y = x w^T
  forward_add,      ///< y = x w^T + z, z[rows, out] another array
  input_gradient,   ///< dx = dy w
  weight_gradient,  ///< dw = dy^T x
  weight_add,       ///< dw += dy^T x
};

struct LinearShape {
  std::size_t rows, in, out;
  auto operator<=>(const LinearShape&) const = default;
};

enum class MatmulElement : std::uint8_t { f32, bf16 };

/// How algorithms are chosen.
struct MatmulTuning {
  /// Time candidates, hot; otherwise cuBLASLt's first proposal, which is the same in every run.
  bool measured = true;
  int candidates = 96;
  double soak_seconds = 1.0;  ///< products run for this long before any is timed
  /// Algorithms are read from this file where it has them, and measured ones written to it; empty:
  /// neither.
  std::string file;
};

/// One stream's products. bf16 operands, fp32 sums; fp32 operands without TF32. An algorithm stays
/// the same for the life of the object, and with it the bits. Not for several threads.
class Matmuls {
 public:
  Matmuls(cudaStream_t stream, MatmulElement element);
  ~Matmuls();
  Matmuls(const Matmuls&) = delete;
  Matmuls& operator=(const Matmuls&) = delete;

  /// Chooses algorithms for these products. Takes passing memory for the largest, and waits.
  struct Wanted {
    Product product;
    LinearShape shape;
  };
  void tune(const std::vector<Wanted>& wanted, const MatmulTuning& tuning);

  /// left, right: x and w, dy and w, or dy and x. `added` is forward_add's z.
  void run(Product product, const LinearShape& shape, const void* left, const void* right,
           void* result, const void* added = nullptr);

  /// A line a product: its shape, TFLOP/s when tuned, and which candidate it is.
  std::vector<std::string> choices() const;

 private:
  struct Plan;
  using Key = std::pair<Product, LinearShape>;

  Plan& plan(Product product, const LinearShape& shape);
  void propose(Plan& plan, int candidates);
  void vary(Plan& plan, std::size_t most);
  bool launch(Plan& plan, std::size_t candidate, const void* left, const void* right, void* result,
              const void* added);
  void choose_by_time(Plan& plan, const void* left, const void* right, void* result);
  bool takes(Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const;
  std::string header() const;
  void read(const std::string& file);
  void write(const std::string& file) const;

  cudaStream_t stream_;
  MatmulElement element_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::map<std::string, std::array<std::uint64_t, 8>> remembered_;
};

}  // namespace llama

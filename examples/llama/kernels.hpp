// The element-wise passes of the model, one each. All enqueue on `stream` and return. T is float or
// tessera::bf16; statistics and sums are fp32. Widths are multiples of 8 but for the vocabulary.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace llama {

/// out[row] = table[tokens[row]].
template <class T>
void embedding_forward(cudaStream_t stream, std::size_t rows, std::size_t dim,
                       const std::int32_t* tokens, const T* table, T* out);

/// The rows of a batch in the order of their tokens, so that each table row's gradient is summed by
/// one block, in the order of the batch: the same bits every time.
class TokenSort {
 public:
  static std::size_t workspace_bytes(std::size_t rows);
  struct Sorted {
    std::int32_t* tokens;  ///< [rows], ascending
    std::int32_t* rows;    ///< [rows], where each was in the batch
  };
  static void sort(cudaStream_t stream, std::size_t rows, const std::int32_t* tokens, Sorted out,
                   std::int32_t* iota, void* workspace, std::size_t workspace_bytes);
};

/// table_gradient (+)= the sum of `gradient`'s rows by token. Without `accumulate` the rest of the
/// table is set to zero.
template <class T>
void embedding_backward(cudaStream_t stream, std::size_t rows, std::size_t dim,
                        std::size_t vocabulary, TokenSort::Sorted sorted, const T* gradient,
                        T* table_gradient, bool accumulate);

/// out = x rstd w, rstd = 1 / sqrt(mean(x^2) + epsilon): Zhang and Sennrich, "Root mean square
/// layer normalization", NeurIPS 2019. rstd[row] is kept for backward.
template <class T>
void rms_norm_forward(cudaStream_t stream, std::size_t rows, std::size_t dim, float epsilon,
                      const T* x, const T* weight, T* out, float* rstd);

struct RmsNormWorkspace {
  static std::size_t floats(std::size_t dim);
  float* partial_sums;
};
/// residual_gradient += the gradient of x, given out_gradient, the gradient of `out`; and the
/// weight's gradient. With `out_again`, which may be out_gradient, the forward's output is written
/// there in the same pass.
template <class T>
void rms_norm_backward(cudaStream_t stream, std::size_t rows, std::size_t dim, const T* x,
                       const T* weight, const float* rstd, const T* out_gradient,
                       T* residual_gradient, T* out_again, T* weight_gradient, bool accumulate,
                       RmsNormWorkspace workspace);
/// The same where there is no residual: x_gradient is written.
template <class T>
void rms_norm_backward_only(cudaStream_t stream, std::size_t rows, std::size_t dim, const T* x,
                            const T* weight, const float* rstd, const T* out_gradient,
                            T* x_gradient, T* weight_gradient, bool accumulate,
                            RmsNormWorkspace workspace);

/// cos and sin of position * theta^(-2 i / head_dim): [sequence, head_dim / 2] each.
void fill_rope_table(cudaStream_t stream, std::size_t sequence, std::size_t head_dim, float theta,
                     float* cosines, float* sines);
/// Rotates the first `rotated_heads` heads of each row of qkv[rows, stride], in place: Su et al.,
/// "RoFormer", 2021, with halves paired as Llama does. `backward` rotates by the negative angle.
template <class T>
void rope(cudaStream_t stream, std::size_t rows, std::size_t sequence, std::size_t rotated_heads,
          std::size_t head_dim, std::size_t stride, const float* cosines, const float* sines,
          bool backward, T* qkv);

/// What lies where documents start, of rows of `width` elements: [documents + 1].
struct RowOffsets {
  std::int64_t* offsets;
  std::int64_t width;
};
/// Of `count` documents whose starts[count + 1] ascend from 0 to the number of rows: their lengths,
/// and where they start in arrays of rows.
void document_bounds(cudaStream_t stream, std::size_t count, const std::int32_t* starts,
                     RowOffsets qkv, RowOffsets out, RowOffsets statistics, std::int32_t* lengths);
/// first[row] = where the row's document starts.
void document_of_rows(cudaStream_t stream, std::size_t rows, std::size_t count,
                      const std::int32_t* starts, std::int32_t* first);

/// out = silu(gate) up; gate_up[rows, 2 ff]: Shazeer, "GLU variants improve transformer", 2020.
template <class T>
void swiglu_forward(cudaStream_t stream, std::size_t rows, std::size_t ff, const T* gate_up,
                    T* out);
/// gate_up becomes its gradient. With `again`, out_gradient becomes the forward's output.
template <class T>
void swiglu_backward(cudaStream_t stream, std::size_t rows, std::size_t ff, T* gate_up,
                     T* out_gradient, bool again);

/// losses[row] = the cross entropy of logits[row], which become `scale` times their gradient unless
/// scale is 0. A target below 0 counts nothing.
template <class T>
void cross_entropy(cudaStream_t stream, std::size_t rows, std::size_t vocabulary,
                   const std::int32_t* targets, float scale, T* logits, float* losses);

/// total[0] += the sum of losses[rows], in a fixed order, in double.
void add_losses(cudaStream_t stream, std::size_t rows, const float* losses, double* total);

/// Normal numbers, for tuning: what a product's operands look like sets the clock it runs at.
template <class T>
void fill_normal(cudaStream_t stream, std::size_t count, float deviation, std::uint64_t seed,
                 T* out);

}  // namespace llama

// The element-wise passes of examples/llama as a fraction of the copy bandwidth of the same run, at
// the sizes of 1b, batch 4 x 4096. Bytes are those that a pass must move.
//
//   bench_llama_passes [--json FILE]
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../gpu/harness.hpp"
#include "attention.hpp"
#include "config.hpp"
#include "kernels.hpp"

namespace bench {
namespace {

using ts::bf16;

class Passes {
 public:
  explicit Passes(Results& results) : results_(results) {
    constexpr std::size_t kCopied = std::size_t{1} << 30;
    const Array<std::byte> from(kCopied), to(kCopied);
    const double ms = milliseconds(stream_, [&] {
      ts::detail::check_cuda(
          cudaMemcpyAsync(to.data(), from.data(), kCopied, cudaMemcpyDeviceToDevice, stream_),
          "copying");
    });
    copy_ = 2.0 * kCopied / ms;
    results_.add("copy", "bandwidth", copy_ / 1e9, "TB/s");
  }

  template <class Call>
  void time(const std::string& name, double bytes, Call&& call) {
    add(name, bytes, milliseconds(stream_, call));
  }

  /// Where a call leaves other values than it needs: each after its own `prepare`, which is not
  /// timed.
  template <class Prepare, class Call>
  void time_each(const std::string& name, double bytes, Prepare&& prepare, Call&& call) {
    const auto check = [](cudaError_t error) { ts::detail::check_cuda(error, "a pass's event"); };
    cudaEvent_t from = nullptr;
    cudaEvent_t to = nullptr;
    check(cudaEventCreate(&from));
    check(cudaEventCreate(&to));
    constexpr int kWarmUps = 4;
    std::vector<double> times;
    for (int i = 0; i < kWarmUps + 21; ++i) {
      prepare();
      check(cudaEventRecord(from, stream_));
      call();
      check(cudaEventRecord(to, stream_));
      check(cudaEventSynchronize(to));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, from, to));
      if (i >= kWarmUps) times.push_back(static_cast<double>(ms));
    }
    (void)cudaEventDestroy(from);
    (void)cudaEventDestroy(to);
    add(name, bytes, median(std::move(times)));
  }

  void add(const std::string& name, double bytes, double ms) {
    results_.add(name, "time", ms * 1e3, "us");
    results_.add(name, "bandwidth", bytes / ms / 1e9, "TB/s");
    results_.add(name, "fraction of copy", bytes / ms / copy_, "");
  }

  /// Random values: on zeros, memory and arithmetic run faster.
  void fill(const Array<bf16>& values, std::size_t count, std::uint64_t seed,
            float deviation = 1.0f) {
    llama::fill_normal(stream_, count, deviation, seed, values.data());
  }

  void run() {
    const llama::Config c = *llama::config_named("1b");
    const std::size_t batch = 4, sequence = 4096, rows = batch * sequence;
    const double stream = 2.0 * static_cast<double>(rows * c.dim);  // bytes of [rows, dim]
    const Array<bf16> x(rows * c.dim), y(rows * c.dim), g(rows * c.dim), weight(c.dim),
        weight_gradient(c.dim);
    const Array<float> rstd(rows), sums(llama::RmsNormWorkspace::floats(c.dim));
    fill(x, rows * c.dim, 1);
    fill(y, rows * c.dim, 2);
    fill(g, rows * c.dim, 3);
    fill(weight, c.dim, 4);
    time("rms_norm/forward", 2 * stream, [&] {
      llama::rms_norm_forward(stream_, rows, c.dim, 1e-5f, x.data(), weight.data(), y.data(),
                              rstd.data());
    });
    time("rms_norm/backward", 4 * stream, [&] {
      llama::rms_norm_backward(stream_, rows, c.dim, x.data(), weight.data(), rstd.data(), y.data(),
                               g.data(), static_cast<bf16*>(nullptr), weight_gradient.data(), false,
                               {sums.data()});
    });
    time("rms_norm/backward-and-output-again", 5 * stream, [&] {
      llama::rms_norm_backward(stream_, rows, c.dim, x.data(), weight.data(), rstd.data(), y.data(),
                               g.data(), y.data(), weight_gradient.data(), false, {sums.data()});
    });

    const Array<bf16> qkv(rows * c.qkv());
    fill(qkv, rows * c.qkv(), 5);
    const Array<float> cosines(sequence * c.head_dim()), sines(sequence * c.head_dim());
    llama::fill_rope_table(stream_, sequence, c.head_dim(), c.rope_theta, cosines.data(),
                           sines.data());
    const double turned = 4.0 * static_cast<double>(rows * (c.heads + c.kv_heads) * c.head_dim());
    time("rope", turned, [&] {
      llama::rope(stream_, rows, sequence, c.heads + c.kv_heads, c.head_dim(), c.qkv(),
                  cosines.data(), sines.data(), false, qkv.data());
    });

    const double hidden = 2.0 * static_cast<double>(rows * c.ff);
    const Array<bf16> gate_up(rows * 2 * c.ff), out(rows * c.ff);
    fill(gate_up, rows * 2 * c.ff, 6);
    time("swiglu/forward", 3 * hidden,
         [&] { llama::swiglu_forward(stream_, rows, c.ff, gate_up.data(), out.data()); });
    const auto refill = [&] {
      fill(gate_up, rows * 2 * c.ff, 6);
      fill(out, rows * c.ff, 7);
    };
    time_each("swiglu/backward", 5 * hidden, refill, [&] {
      llama::swiglu_backward(stream_, rows, c.ff, gate_up.data(), out.data(), false);
    });
    time_each("swiglu/backward-and-output-again", 6 * hidden, refill, [&] {
      llama::swiglu_backward(stream_, rows, c.ff, gate_up.data(), out.data(), true);
    });

    const Array<bf16> logits(rows * c.vocabulary);
    const Array<std::int32_t> tokens(rows), sorted(rows), order(rows), iota(rows);
    const Array<float> losses(rows);
    std::vector<std::int32_t> host(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      host[i] = static_cast<std::int32_t>(ts::random_bits(1, 2, i) % c.vocabulary);
    }
    ts::detail::check_cuda(cudaMemcpy(tokens.data(), host.data(), rows * 4, cudaMemcpyHostToDevice),
                           "tokens");
    time_each(
        "cross_entropy/loss-and-gradient", 4.0 * static_cast<double>(rows * c.vocabulary),
        [&] { fill(logits, rows * c.vocabulary, 8, 3.0f); },
        [&] {
          llama::cross_entropy(stream_, rows, c.vocabulary, tokens.data(), 1e-4f, logits.data(),
                               losses.data());
        });

    const Array<bf16> table(c.vocabulary * c.dim);
    fill(table, c.vocabulary * c.dim, 9);
    time("embedding/forward", 2 * stream, [&] {
      llama::embedding_forward(stream_, rows, c.dim, tokens.data(), table.data(), y.data());
    });
    const std::size_t bytes = llama::TokenSort::workspace_bytes(rows);
    const Array<std::byte> workspace(bytes);
    const llama::TokenSort::Sorted by_token{sorted.data(), order.data()};
    // Bound by its launches, not by its bytes.
    const double sort = milliseconds(stream_, [&] {
      llama::TokenSort::sort(stream_, rows, tokens.data(), by_token, iota.data(), workspace.data(),
                             bytes);
    });
    results_.add("embedding/sort-of-tokens", "time", sort * 1e3, "us");
    // The table is set to zero, then the rows that occur are written.
    time("embedding/backward", 2.0 * static_cast<double>(c.vocabulary * c.dim) + 2 * stream, [&] {
      llama::embedding_backward(stream_, rows, c.dim, c.vocabulary, by_token, g.data(),
                                table.data(), false);
    });
  }

 private:
  Results& results_;
  cudaStream_t stream_ = cudaStreamPerThread;
  double copy_ = 0;
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const bool json = argc == 3 && std::strcmp(argv[1], "--json") == 0;
  if (argc != 1 && !json) {
    std::fprintf(stderr, "usage: bench_llama_passes [--json FILE]\n");
    return 2;
  }
  try {
    bench::Results results;
    bench::Passes(results).run();
    cudaDeviceProp properties{};
    tessera::detail::check_cuda(cudaGetDeviceProperties(&properties, 0), "the device's name");
    if (json && !results.write_json(argv[2], properties.name)) {
      std::fprintf(stderr, "error: cannot write %s\n", argv[2]);
      return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

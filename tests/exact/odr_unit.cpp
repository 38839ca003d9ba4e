// Compiled twice by odr.sh, with ODR_DIGEST=plain_digest and ODR_DIGEST=wide_digest, for different
// instruction sets.
#include "workload.hpp"

namespace odr {

/// With external linkage, unlike the functors of the workload: what calls it is merged by the
/// linker if it has the same name in both units.
struct Cube {
  template <class R>
  void operator()(const R& x, R& cube) const {
    cube = x * x * x;
  }
};

}  // namespace odr

std::uint64_t ODR_DIGEST();
std::uint64_t ODR_DIGEST() {
  std::vector<float> values = make_values(1, true);
  tessera::elementwise(values.size(), odr::Cube{}, tessera::In<float>{values.data()},
                       tessera::Out<float>{values.data()});
  tessera::Digest digest;
  digest.update(values.data(), values.size());
  return digest.value() ^ workload_digest();
}

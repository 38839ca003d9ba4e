// Two translation units of one program, compiled for different instruction sets; see odr.sh.
#include <cinttypes>
#include <cstdint>
#include <cstdio>

std::uint64_t plain_digest();
std::uint64_t wide_digest();

int main() {
  const std::uint64_t plain = plain_digest();
  const std::uint64_t wide = wide_digest();
  std::printf("%016" PRIx64 " plain, %016" PRIx64 " wide\n", plain, wide);
  return plain == wide ? 0 : 1;
}

#include <tessera/tessera.hpp>

#include <cstdio>

using Model = tessera::Shard<tessera::Zero3<>, tessera::OnDevice, tessera::Bf16>;
static_assert(TESSERA_VERSION ==
              TESSERA_VERSION_MAJOR * 10000 + TESSERA_VERSION_MINOR * 100 + TESSERA_VERSION_PATCH);

int main() {
  std::printf("tessera %d, Shard has %zu bytes\n", TESSERA_VERSION, sizeof(Model));
  return sizeof(Model) == 0;
}

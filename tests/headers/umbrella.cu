#include <tessera/tessera.hpp>

using Model = tessera::Shard<tessera::Zero3<>, tessera::OnDevice, tessera::Bf16>;

__global__ void kernel(float* out) { *out = TESSERA_VERSION; }

int main() { return sizeof(Model) == 0; }

#pragma once

#include <tessera/tessera.hpp>

#include <cstddef>

// Instantiates whole policies: each unit that includes this has all their members.
template class tessera::Shard<tessera::Zero3<>, tessera::OnDevice, tessera::Bf16>;
template class tessera::Shard<tessera::Zero1, tessera::OnDevice, tessera::Fp32>;

using Model = tessera::Shard<tessera::Zero3<>, tessera::OnDevice, tessera::Bf16>;

std::size_t size_in_main();
std::size_t size_in_other();

// Everything that needs only the standard library.
#pragma once

#include "tessera/codec/raw.hpp"
#include "tessera/comm/in_process.hpp"
#include "tessera/comm/mesh.hpp"
#include "tessera/comm/reduce_scratch.hpp"  // for communicators that bring gradients together
#include "tessera/comm/sim.hpp"
#include "tessera/error.hpp"
#include "tessera/exact/random.hpp"
#include "tessera/optimizer/adamw.hpp"
#include "tessera/optimizer/lion.hpp"
#include "tessera/optimizer/sgd.hpp"
#include "tessera/parallel/cross_entropy.hpp"
#include "tessera/parallel/embedding.hpp"
#include "tessera/parallel/region.hpp"
#include "tessera/shard.hpp"
#include "tessera/tensor/adapters.hpp"
#include "tessera/version.hpp"

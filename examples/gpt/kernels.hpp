// The model's arithmetic: forward and backward kernels on plain float arrays, one thread each.
//
// All of them give the same bits for the same input. Those that write parameters' gradients take a
// Gradient, which says whether to add to what is there.
#pragma once

#include "attention.hpp"
#include "cross_entropy.hpp"
#include "embedding.hpp"
#include "gelu.hpp"
#include "layer_norm.hpp"
#include "linear.hpp"

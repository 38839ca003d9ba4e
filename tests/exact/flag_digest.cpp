// Prints the digest of a fixed workload. flag_digest.sh compiles it with many flags; it has to
// print the same in all of them.
#include <cinttypes>
#include <cstdio>

#include "workload.hpp"

int main() { std::printf("%016" PRIx64 "\n", workload_digest()); }

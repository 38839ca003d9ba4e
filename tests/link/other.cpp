#include "use.hpp"

std::size_t size_in_other() { return sizeof(Model); }

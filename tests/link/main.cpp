#include "use.hpp"

std::size_t size_in_main() { return sizeof(Model); }

int main() { return size_in_main() == size_in_other() ? 0 : 1; }

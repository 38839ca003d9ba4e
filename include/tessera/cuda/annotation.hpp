// Ranges on the timeline of a profiler (NVTX): what the caller's thread is in, by unit.
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstdint>

namespace tessera::detail {

inline nvtxDomainHandle_t nvtx_domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("tessera");
  return domain;
}

/// Ranges may overlap; without a profiler they cost a few nanoseconds. The text must last for the
/// call.
inline std::uint64_t begin_annotation(const char* text, std::uint32_t category) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.category = category;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text;
  return nvtxDomainRangeStartEx(nvtx_domain(), &attributes);
}
inline void end_annotation(std::uint64_t range) { nvtxDomainRangeEnd(nvtx_domain(), range); }

}  // namespace tessera::detail

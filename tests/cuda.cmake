# Everything that nvcc must take: the whole library in one unit, and every tests/<folder>/*.cu.
# Nothing here needs a GPU; the one program that runs uses the host only.
add_executable(cuda_headers headers/umbrella.cu)
target_link_libraries(cuda_headers PRIVATE tessera_development)
add_test(NAME cuda_headers COMMAND cuda_headers)
set_tests_properties(cuda_headers PROPERTIES TIMEOUT ${test_timeout} LABELS "check;cuda")

file(GLOB cuda_sources CONFIGURE_DEPENDS */*.cu)
list(FILTER cuda_sources EXCLUDE REGEX "/headers/")
if(cuda_sources)
  add_library(cuda_sources OBJECT ${cuda_sources})
  target_link_libraries(cuda_sources PRIVATE tessera_development)
  target_include_directories(cuda_sources PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
endif()

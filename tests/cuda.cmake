# Everything that needs the CUDA toolkit: headers, kernels and tests. All of it compiles and links
# without a GPU; the tests that need one say so and are skipped where there is none, unless
# TESSERA_GPU_REQUIRED is set in the environment.
find_package(CUDAToolkit REQUIRED)
find_path(DOCTEST_INCLUDE_DIR doctest/doctest.h HINTS ${PROJECT_SOURCE_DIR}/.gpu/include)
mark_as_advanced(DOCTEST_INCLUDE_DIR)
find_package(NCCL)

add_executable(cuda_headers headers/umbrella.cu)
target_link_libraries(cuda_headers PRIVATE tessera_development)
add_test(NAME cuda_headers COMMAND cuda_headers)
set_tests_properties(cuda_headers PROPERTIES TIMEOUT ${test_timeout} LABELS "check;cuda")

# The public headers of CUDA, each alone and twice, for g++ as for nvcc.
set(units "")
foreach(header IN LISTS tessera_opt_in_headers)
  file(RELATIVE_PATH name ${tessera_include_dir} ${header})
  if(NOT name MATCHES "^tessera/(cuda|nccl)" OR (name MATCHES "nccl" AND NOT NCCL_FOUND))
    continue()
  endif()
  string(MAKE_C_IDENTIFIER ${name} identifier)
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${identifier}.cpp)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include <${name}>\n#include <${name}>\n")
  list(APPEND units ${unit})
endforeach()
add_library(cuda_header_units OBJECT ${units})
target_link_libraries(cuda_header_units PRIVATE tessera_development CUDA::cudart_static)
target_compile_options(cuda_header_units PRIVATE -O0 -Wno-old-style-cast
                                                 -Wno-unused-function)
if(NCCL_FOUND)
  target_link_libraries(cuda_header_units PRIVATE NCCL::nccl)
endif()

if(NOT DOCTEST_INCLUDE_DIR)
  tessera_skip("the tests of the CUDA backend" "doctest was not found")
  return()
endif()

# A GPU test: <name> <sources>...; in sources that g++ compiles TESSERA_TEST_CUDA chooses the backend.
add_library(cuda_test_main OBJECT cuda/main.cpp support/cuda_allocation_counter.cu
                                  support/cuda_kernels.cu)
target_link_libraries(cuda_test_main PUBLIC tessera_development CUDA::cudart_static)
target_include_directories(cuda_test_main SYSTEM PUBLIC ${DOCTEST_INCLUDE_DIR})
target_include_directories(cuda_test_main PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(cuda_test_main PUBLIC TESSERA_TEST_CUDA)
target_compile_options(
  cuda_test_main PUBLIC $<$<COMPILE_LANGUAGE:CXX>:-O1 -Wno-old-style-cast -Wno-unused-function>)
target_link_options(cuda_test_main PUBLIC -Wl,--wrap=cudaMalloc,--wrap=cudaFree)

function(tessera_gpu_test name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE cuda_test_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_timeout} LABELS "gpu" SKIP_RETURN_CODE 77
                                          ENVIRONMENT "NCCL_NVLS_ENABLE=0")
endfunction()

file(GLOB cuda_tests CONFIGURE_DEPENDS cuda/*_test.cu)
tessera_gpu_test(test_cuda ${cuda_tests})
# The tests of the engine that touch tensors through support/backend.hpp only.
tessera_gpu_test(
  test_engine_cuda
  engine/counts_test.cpp
  engine/faults_test.cpp
  engine/prefetch_order_test.cpp
  engine/schedule_test.cpp)
set_target_properties(test_engine_cuda PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 2)
tessera_gpu_test(test_property_cuda property/property_test.cpp)
set_tests_properties(test_property_cuda PROPERTIES ENVIRONMENT
                                                   "TESSERA_PROPERTY_CASES=1000;TESSERA_PROPERTY_SHRINK=20")

if(NCCL_FOUND)
  file(GLOB nccl_tests CONFIGURE_DEPENDS nccl/*_test.cu)
  if(nccl_tests)
    tessera_gpu_test(test_nccl ${nccl_tests})
    target_link_libraries(test_nccl PRIVATE NCCL::nccl)
    add_executable(launch_check nccl/launch_check.cu)
    target_link_libraries(launch_check PRIVATE tessera_development CUDA::cudart_static NCCL::nccl)
    add_test(NAME launch_check COMMAND launch_check)
    set_tests_properties(
      launch_check PROPERTIES TIMEOUT ${test_timeout} LABELS gpu SKIP_RETURN_CODE 77 ENVIRONMENT
                              "NCCL_NVLS_ENABLE=0")
  endif()
else()
  tessera_skip("tests/nccl" "NCCL was not found")
endif()

# The Llama of examples/llama against tests/llama's reference.
if(TARGET llama_model)
  file(GLOB llama_gpu_tests CONFIGURE_DEPENDS llama/*_gpu_test.cpp)
  tessera_gpu_test(test_llama_cuda ${llama_gpu_tests} ${PROJECT_SOURCE_DIR}/examples/llama/tokens.cpp)
  target_link_libraries(test_llama_cuda PRIVATE llama_model)
endif()

# The bits of the host and of the device, under the flags that could change them.
add_executable(device_bits exact/device_bits.cu)
add_executable(device_bits_fast_math exact/device_bits.cu)
target_compile_options(device_bits_fast_math PRIVATE -use_fast_math)
foreach(name IN ITEMS device_bits device_bits_fast_math)
  target_link_libraries(${name} PRIVATE tessera_development CUDA::cudart_static)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_timeout} LABELS gpu SKIP_RETURN_CODE 77)
endforeach()

# What a machine without a GPU is told.
add_test(NAME no_device COMMAND test_cuda --no-skip-without-gpu)
set_tests_properties(no_device PROPERTIES TIMEOUT 60 LABELS "check;cuda")

# Checks against other code that have a main of their own.
file(GLOB checks CONFIGURE_DEPENDS gpt/*_check.cu cuda/*_check.cu)
foreach(source IN LISTS checks)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE tessera_development CUDA::cublas CUDA::cudart)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
                                             ${PROJECT_SOURCE_DIR}/examples)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_timeout} LABELS gpu SKIP_RETURN_CODE 77)
endforeach()

find_package(Python3 COMPONENTS Interpreter QUIET)
if(TARGET gpt_cuda AND Python3_FOUND)
  add_test(NAME gpt_cuda_same_bits
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/gpt/cuda_same_bits.py
                   $<TARGET_FILE:gpt_cuda>)
  set_tests_properties(gpt_cuda_same_bits PROPERTIES TIMEOUT 300 LABELS gpu SKIP_RETURN_CODE 77)
endif()
if(TARGET llama AND Python3_FOUND)
  add_test(NAME llama_same_bits
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/llama/cuda_same_bits.py
                   $<TARGET_FILE:llama>)
  set_tests_properties(llama_same_bits PROPERTIES TIMEOUT 300 LABELS gpu SKIP_RETURN_CODE 77)
endif()

# Settings of those who work on the library; a project that uses it sees none of them.
option(TESSERA_WARNINGS_AS_ERRORS "Treat warnings as errors" OFF)
option(TESSERA_NATIVE "Compile examples and benchmarks for this machine with -O3" OFF)
option(TESSERA_CHECKS
       "Test more than run time: includes, compile time, negative, mutation and consumer tests" ON)
option(TESSERA_CUDA "Compile what needs nvcc, and only that" OFF)
set(TESSERA_SANITIZE "" CACHE STRING "Value of -fsanitize= for tests and examples")

list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
set(CMAKE_CXX_EXTENSIONS OFF)
find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Our own sources link this: the library, our warnings and the sanitizers.
add_library(tessera_development INTERFACE)
target_link_libraries(tessera_development INTERFACE tessera::tessera)
target_compile_options(
  tessera_development
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wold-style-cast
            -Wcast-qual
            -Wextra-semi
            -Wundef>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tessera_development INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wduplicated-cond
                                                       -Wlogical-op>)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 warns falsely of overlapping copies inside operator+ of std::string.
    target_compile_options(tessera_development INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
endif()
if(TESSERA_WARNINGS_AS_ERRORS)
  target_compile_options(tessera_development INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(TESSERA_SANITIZE)
  target_compile_options(
    tessera_development INTERFACE -fsanitize=${TESSERA_SANITIZE} -fno-sanitize-recover=all
                                  -fno-omit-frame-pointer)
  target_link_options(tessera_development INTERFACE -fsanitize=${TESSERA_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # What the sanitizers insert hides initialisations from this warning.
    target_compile_options(tessera_development INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

add_library(tessera_native INTERFACE)
if(TESSERA_NATIVE)
  target_compile_options(tessera_native INTERFACE -O3 -march=native)
endif()

# Says why something is left out; the message is the same everywhere.
function(tessera_skip what why)
  message(STATUS "tessera: skipping ${what}: ${why}")
endfunction()

# A header-only package that was not found, from .gpu/include where ./dev gpu-stage has put it.
macro(tessera_use_staged name target folder)
  if(NOT ${name}_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.gpu/include/${folder})
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/.gpu/include)
    set(${name}_FOUND TRUE)
  endif()
endmacro()

if(TESSERA_CUDA)
  include(cmake/cuda.cmake)
endif()

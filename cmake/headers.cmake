# The public headers. Those that need more than the standard library are installed too, but stand in
# a file set of their own: nothing that checks headers alone may compile them.
set(tessera_include_dir ${PROJECT_SOURCE_DIR}/include)
set(tessera_opt_in_pattern
    "/tessera/((cuda|nccl|mpi|kokkos|torch|thrust|checkpoint|plan)\\.hpp|(cuda|nccl|mpi|kokkos|torch|thrust|checkpoint|plan)/)|\\.cuh$")

file(GLOB_RECURSE tessera_headers CONFIGURE_DEPENDS ${tessera_include_dir}/tessera/*.hpp
     ${tessera_include_dir}/tessera/*.cuh)
set(tessera_opt_in_headers ${tessera_headers})
list(FILTER tessera_opt_in_headers INCLUDE REGEX ${tessera_opt_in_pattern})
list(FILTER tessera_headers EXCLUDE REGEX ${tessera_opt_in_pattern})

target_sources(tessera INTERFACE FILE_SET HEADERS BASE_DIRS ${tessera_include_dir} FILES
                                 ${tessera_headers})
if(tessera_opt_in_headers)
  target_sources(tessera INTERFACE FILE_SET opt_in TYPE HEADERS BASE_DIRS ${tessera_include_dir}
                                   FILES ${tessera_opt_in_headers})
endif()
set_target_properties(tessera PROPERTIES INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)

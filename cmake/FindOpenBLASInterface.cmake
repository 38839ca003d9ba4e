# The C interface of OpenBLAS as the target OpenBLAS::interface: by pkg-config, or else by looking.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(PC_OPENBLAS QUIET openblas)
endif()
find_path(OPENBLAS_INCLUDE_DIR cblas.h HINTS ${PC_OPENBLAS_INCLUDE_DIRS}
          PATH_SUFFIXES openblas openblas-pthread)
find_library(OPENBLAS_LIBRARY openblas HINTS ${PC_OPENBLAS_LIBRARY_DIRS}
             PATH_SUFFIXES openblas-pthread)
mark_as_advanced(OPENBLAS_INCLUDE_DIR OPENBLAS_LIBRARY)

include(FindPackageHandleStandardArgs)
set(OpenBLASInterface_FIND_QUIETLY ON)
find_package_handle_standard_args(OpenBLASInterface DEFAULT_MSG OPENBLAS_LIBRARY
                                  OPENBLAS_INCLUDE_DIR)
if(OpenBLASInterface_FOUND AND NOT TARGET OpenBLAS::interface)
  add_library(OpenBLAS::interface UNKNOWN IMPORTED)
  set_target_properties(
    OpenBLAS::interface PROPERTIES IMPORTED_LOCATION ${OPENBLAS_LIBRARY}
                                   INTERFACE_INCLUDE_DIRECTORIES ${OPENBLAS_INCLUDE_DIR})
endif()

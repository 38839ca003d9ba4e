# Installs headers, a CMake package and a pkg-config file. Nothing has to be built first.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/tessera)
set(pkgconfig_dir ${CMAKE_INSTALL_DATADIR}/pkgconfig)

set(file_sets FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(tessera_opt_in_headers)
  list(APPEND file_sets FILE_SET opt_in DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
install(TARGETS tessera EXPORT tesseraTargets ${file_sets})
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package_dir})

configure_package_config_file(cmake/tesseraConfig.cmake.in tesseraConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(tesseraConfigVersion.cmake COMPATIBILITY SameMajorVersion
                                 ARCH_INDEPENDENT)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tesseraConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/tesseraConfigVersion.cmake DESTINATION ${package_dir})

# The pkg-config file finds the headers from its own place, so that a prefix can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(tessera_pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
else()
  file(RELATIVE_PATH to_include ${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig
       ${CMAKE_INSTALL_FULL_INCLUDEDIR})
  set(tessera_pc_includedir "\${pcfiledir}/${to_include}")
endif()
configure_file(cmake/tessera.pc.in tessera.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tessera.pc DESTINATION ${pkgconfig_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/tessera)

# The tenon program: one file per command.
file(GLOB tool_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/tenon/*.c ${CMAKE_SOURCE_DIR}/tools/tenon/*/*.c)
if(NOT tool_sources OR NOT TARGET tenon_llm_static)
  return()
endif()
add_executable(tenon_program ${tool_sources})
set_target_properties(tenon_program PROPERTIES OUTPUT_NAME tenon ENABLE_EXPORTS ON)
target_include_directories(tenon_program PRIVATE tools/tenon)
target_link_libraries(tenon_program PRIVATE tenon_flags tenon_llm tenon
  PkgConfig::LIBEVENT PkgConfig::LIBEVENT_PTHREADS PkgConfig::JANSSON PkgConfig::LIBEDIT)
target_link_options(tenon_program PRIVATE -pie)
set_target_properties(tenon_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

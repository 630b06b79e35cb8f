# The programs of `make bench-peers`: one driver for each library, the program that runs them in turn, and one
# that compares the errors of quantized files.
foreach(name IN ITEMS ours peer compare quantize_error)
  add_executable(peers-${name} bench/peers/${name}.c)
  set_target_properties(peers-${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/peers)
  target_link_libraries(peers-${name} PRIVATE tenon_flags ${CMAKE_DL_LIBS})
endforeach()
target_link_libraries(peers-ours PRIVATE tenon_llm_static)
target_link_libraries(peers-quantize_error PRIVATE tenon_static m)

# tests/unit/MODULE/test_NAME.c is one cmocka program and one ctest entry; scripts in tests/commands, server, peer and
# project are end-to-end tests.
file(GLOB support CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/*.c ${CMAKE_SOURCE_DIR}/tests/support/models/*.c
     ${CMAKE_SOURCE_DIR}/tests/support/recurrent/*.c ${CMAKE_SOURCE_DIR}/tests/support/sparse/*.c
     ${CMAKE_SOURCE_DIR}/tests/support/forward/*.c)
# The tests' own models have the keys that the program writes.
add_library(tenon_test_support STATIC ${support} tools/tenon/files/layout.c)
target_include_directories(tenon_test_support PUBLIC tests/support include src PRIVATE tools/tenon)
target_link_libraries(tenon_test_support PRIVATE tenon_flags PUBLIC tenon_static PkgConfig::CMOCKA)
if(TARGET tenon_llm_static)
  target_link_libraries(tenon_test_support PUBLIC tenon_llm_static)
endif()
target_compile_definitions(tenon_test_support PUBLIC TENON_SOURCE_DIR="${CMAKE_SOURCE_DIR}") # for data in tests/

file(GLOB unit_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/unit/*/test_*.c)
foreach(source IN LISTS unit_tests)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE tenon_flags tenon_test_support PkgConfig::JANSSON)
  if(TARGET tenon_llm_static)
    target_link_libraries(${name} PRIVATE tenon_llm_static)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600
    ENVIRONMENT "TENON_GOLDEN_DEFAULT=${CMAKE_SOURCE_DIR}/../shared/golden;CMOCKA_TEST_ABORT=0")
endforeach()
set_tests_properties(test_plan_law PROPERTIES TIMEOUT 1800) # with TENON_LONG=1
# Page tables far longer than the cache, with the CPU in place of the GPU: scratch must be large enough.
add_test(NAME pages_on_host COMMAND test_gpu_pages)
set_tests_properties(pages_on_host PROPERTIES TIMEOUT 600 ENVIRONMENT "TENON_GPU=cpu;TENON_TESTS=lay*")
# Loaded backends must share the program's copy of the library, or their error messages would go to another one.
set_target_properties(test_tensor_load PROPERTIES ENABLE_EXPORTS ON)

# Compares models with reference logits; tests/zoo/run.sh calls it for every model of the golden zoo.
add_executable(zoo tests/zoo/zoo.c tests/zoo/ranks.c tests/zoo/ties.c)
set_target_properties(zoo PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(zoo PRIVATE tenon_flags tenon_llm_static tenon_static)

# Models of the zoo with other shapes, and the peer's logits of them: tests/zoo/variants.py calls both.
add_executable(zoo_variant tests/zoo/variant.c)
add_executable(peer_logits tests/zoo/peer_logits.c)
set_target_properties(zoo_variant peer_logits PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(zoo_variant PRIVATE tenon_flags tenon_llm_static tenon_static)
target_link_libraries(peer_logits PRIVATE tenon_flags ${CMAKE_DL_LIBS})

# Loadable backends for the registry's tests: a good one, an empty one, an old one and one of another interface.
set(kinds good none old stranger)
foreach(kind RANGE 1 4)
  math(EXPR index "${kind} - 1")
  list(GET kinds ${index} name)
  add_library(test_module_${name} MODULE tests/modules/backend.c)
  set_target_properties(test_module_${name} PROPERTIES PREFIX lib OUTPUT_NAME tenon-${name}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/modules)
  target_include_directories(test_module_${name} PRIVATE include)
  target_compile_definitions(test_module_${name} PRIVATE MODULE_KIND=${kind})
  target_link_libraries(test_module_${name} PRIVATE tenon_flags)
  add_dependencies(test_registry test_module_${name})
endforeach()
target_compile_definitions(test_registry PRIVATE TENON_TEST_MODULES="${CMAKE_BINARY_DIR}/tests/modules")

# Stand-ins for NCCL and the CUDA driver, under the names that the transport looks for.
foreach(name nccl cuda)
  add_library(fake_${name} MODULE tests/modules/fake_nccl.c)
  set_target_properties(fake_${name} PROPERTIES PREFIX lib OUTPUT_NAME ${name} C_VISIBILITY_PRESET default
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/fake_nccl)
  target_compile_definitions(fake_${name} PRIVATE _GNU_SOURCE)
  add_dependencies(test_nccl fake_${name})
endforeach()
set_target_properties(fake_nccl PROPERTIES SUFFIX .so.2)
set_target_properties(fake_cuda PROPERTIES SUFFIX .so.1)
add_dependencies(test_nccl tenon_net_nccl)
set_target_properties(test_nccl PROPERTIES ENABLE_EXPORTS ON)
set_property(TEST test_nccl APPEND PROPERTY ENVIRONMENT "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/fake_nccl")

if(TARGET test_cli)
  target_link_libraries(test_cli PRIVATE tenon_frame)
endif()
target_include_directories(test_model_tools PRIVATE tools/tenon)
target_sources(test_model_tools PRIVATE tools/tenon/files/importance.c tools/tenon/files/quant_mix.c tools/tenon/convert/packed.c
  tools/tenon/convert/safetensors.c)

file(GLOB script_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/commands/*.sh ${CMAKE_SOURCE_DIR}/tests/models/*.sh ${CMAKE_SOURCE_DIR}/tests/server/*.sh
  ${CMAKE_SOURCE_DIR}/tests/peer/*_peer.sh ${CMAKE_SOURCE_DIR}/tests/project/*.sh)
foreach(source IN LISTS script_tests)
  get_filename_component(name ${source} NAME_WE)
  add_test(NAME ${name} COMMAND bash ${source} ${CMAKE_BINARY_DIR})
  # A script that cannot run here (no npm, no browser) says why and exits 77.
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77
    ENVIRONMENT "TENON_GOLDEN_DEFAULT=${CMAKE_SOURCE_DIR}/../shared/golden")
endforeach()

# `make fault` preloads this library to inject failures of system calls.
add_library(fault_preload MODULE tests/fault/preload.c)
set_target_properties(fault_preload PROPERTIES C_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_compile_options(fault_preload PRIVATE -Wall -Wextra -fno-builtin)
target_compile_definitions(fault_preload PRIVATE _GNU_SOURCE)
target_link_libraries(fault_preload PRIVATE ${CMAKE_DL_LIBS})

# The load generator of `make soak`.
add_executable(soak tests/soak/soak.c)
set_target_properties(soak PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(soak PRIVATE tenon_flags Threads::Threads)

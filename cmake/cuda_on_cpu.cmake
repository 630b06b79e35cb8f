# The CUDA backend on the CPU (tests/cuda_on_cpu): its sources translated and compiled once per compute capability,
# as modules in folders of their own: build/cuda_on_cpu/75/libtenon-cuda.so and so on.
find_path(TENON_CUDA_HEADERS cublasLt.h HINTS /usr/local/cuda/include /usr/local/cuda/targets/x86_64-linux/include)
find_package(Python3 COMPONENTS Interpreter)
include(CheckLanguage)
check_language(CXX)
# Launch lists of described GPUs, compared with tests/data/launches. Skipped where the modules below are not built.
if(Python3_FOUND)
  add_test(NAME cuda_launches COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tests/cuda_on_cpu/launches.py ${CMAKE_BINARY_DIR})
else()
  add_test(NAME cuda_launches COMMAND sh -c "echo skipped: no Python 3; exit 77")
endif()
set_tests_properties(cuda_launches PROPERTIES SKIP_RETURN_CODE 77)
# Counts a process's requests to the CUDA driver (scripts/count_gpu_bytes.sh).
add_library(count_gpu_bytes MODULE tests/modules/count_gpu_bytes.c)
set_target_properties(count_gpu_bytes PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/modules)
target_link_libraries(count_gpu_bytes PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
file(GLOB_RECURSE cuda_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cuh)
if(NOT TENON_CUDA_HEADERS OR NOT Python3_FOUND OR NOT CMAKE_CXX_COMPILER OR NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" OR TENON_SANITIZE)
  message(STATUS "CUDA on CPU: left out (no CUDA headers, no Python, no C++ compiler, another CPU, or a sanitizer build)")
  return()
endif()
enable_language(CXX)
set(TENON_CUDA_ON_CPU_ARCHS "75;80;90" CACHE STRING "Compute capabilities of the CUDA backend on the CPU")

set(emulator ${CMAKE_SOURCE_DIR}/tests/cuda_on_cpu)
set(translated ${CMAKE_BINARY_DIR}/cuda_on_cpu/backend/cuda)
set(translated_sources)
set(translated_files)
foreach(source IN LISTS cuda_files)
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src/backend/cuda ${source})
  set(target ${translated}/${name})
  get_filename_component(folder ${target} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  if(name MATCHES "\\.cu$")
    string(REGEX REPLACE "\\.cu$" ".cpp" target ${target})
    list(APPEND translated_sources ${target})
  endif()
  add_custom_command(OUTPUT ${target} COMMAND Python3::Interpreter ${emulator}/translate.py ${source} ${target}
    DEPENDS ${source} ${emulator}/translate.py)
  list(APPEND translated_files ${target})
endforeach()
add_custom_target(cuda_on_cpu_sources DEPENDS ${translated_files})

set(options -std=c++17 -g1 -fPIC -Wall -Wno-unused -Wno-sign-compare -Wno-parentheses -Wno-unknown-pragmas -Wno-class-memaccess -Wno-attributes
  -fno-strict-aliasing -ffp-contract=off)
# Misaligned and out-of-bounds accesses trap; no sanitizer library is linked.
set(kernel_options -O2 -include ${emulator}/cuda_on_cpu.h
  -fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero -fsanitize-undefined-trap-on-error)
file(GLOB emulator_sources CONFIGURE_DEPENDS ${emulator}/*.cpp)
add_library(cuda_on_cpu_runtime OBJECT ${emulator_sources})
add_library(cuda_on_cpu INTERFACE)
target_include_directories(cuda_on_cpu INTERFACE ${CMAKE_BINARY_DIR}/cuda_on_cpu include src ${emulator})
target_include_directories(cuda_on_cpu SYSTEM INTERFACE ${TENON_CUDA_HEADERS})
target_compile_definitions(cuda_on_cpu INTERFACE _GNU_SOURCE)
target_compile_options(cuda_on_cpu INTERFACE ${options})
target_link_libraries(cuda_on_cpu_runtime PRIVATE cuda_on_cpu)
target_compile_options(cuda_on_cpu_runtime PRIVATE -O2 -fvisibility=hidden)

foreach(arch IN LISTS TENON_CUDA_ON_CPU_ARCHS)
  add_library(cuda_on_cpu_${arch} MODULE ${translated_sources} ${emulator}/capability.cc $<TARGET_OBJECTS:cuda_on_cpu_runtime>)
  add_dependencies(cuda_on_cpu_${arch} cuda_on_cpu_sources)
  set_target_properties(cuda_on_cpu_${arch} PROPERTIES PREFIX lib OUTPUT_NAME tenon-cuda CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/cuda_on_cpu/${arch})
  target_compile_definitions(cuda_on_cpu_${arch} PRIVATE EMULATED_ARCH=${arch}0)
  target_compile_options(cuda_on_cpu_${arch} PRIVATE ${kernel_options})
  target_link_libraries(cuda_on_cpu_${arch} PRIVATE cuda_on_cpu tenon)
  add_test(NAME cuda_on_cpu_${arch} COMMAND bash ${emulator}/run.sh ${CMAKE_BINARY_DIR} ${arch})
  set_tests_properties(cuda_on_cpu_${arch} PROPERTIES TIMEOUT 3600 SKIP_RETURN_CODE 77
    ENVIRONMENT "TENON_GOLDEN_DEFAULT=${CMAKE_SOURCE_DIR}/../shared/golden;CMOCKA_TEST_ABORT=0")
endforeach()

# Planted mistakes that the emulator must report.
set(bugs ${CMAKE_BINARY_DIR}/cuda_on_cpu/bugs.cpp)
add_custom_command(OUTPUT ${bugs} COMMAND Python3::Interpreter ${emulator}/translate.py ${emulator}/bugs.cu ${bugs}
  DEPENDS ${emulator}/bugs.cu ${emulator}/translate.py)
add_executable(test_cuda_on_cpu ${bugs} ${emulator}/capability.cc $<TARGET_OBJECTS:cuda_on_cpu_runtime>)
set_target_properties(test_cuda_on_cpu PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_compile_definitions(test_cuda_on_cpu PRIVATE EMULATED_ARCH=900)
target_compile_options(test_cuda_on_cpu PRIVATE ${kernel_options})
target_link_libraries(test_cuda_on_cpu PRIVATE cuda_on_cpu PkgConfig::CMOCKA Threads::Threads)
add_test(NAME test_cuda_on_cpu COMMAND test_cuda_on_cpu)

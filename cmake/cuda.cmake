# The CUDA backend: libtenon-cuda.so, built where nvcc is found and left out elsewhere.
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
find_program(TENON_NVCC nvcc HINTS /usr/local/cuda/bin)
find_library(TENON_CUBLASLT cublasLt HINTS /usr/local/cuda/lib64)
if(NOT TENON_NVCC OR NOT TENON_CUBLASLT OR NOT cuda_sources OR TENON_SANITIZE)
  message(STATUS "CUDA backend: left out (no nvcc, or a sanitizer build)")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${TENON_NVCC})
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
add_library(tenon_cuda MODULE ${cuda_sources})
set_target_properties(tenon_cuda PROPERTIES OUTPUT_NAME tenon-cuda PREFIX lib CUDA_STANDARD 17
  CUDA_ARCHITECTURES "${TENON_CUDA_ARCHS}" CUDA_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden
  CUDA_RUNTIME_LIBRARY Static)
target_include_directories(tenon_cuda PRIVATE include src)
target_compile_options(tenon_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-fPIC --expt-relaxed-constexpr -lineinfo>)
target_link_libraries(tenon_cuda PRIVATE tenon CUDA::cublasLt)

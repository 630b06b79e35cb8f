# Each folder kernels/<isa> is compiled with that instruction set's flags and chosen at run time; generic is always built.
set(TENON_KERNEL_OBJECTS)
function(tenon_kernels isa)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cpu/kernels/${isa}/*.c)
  if(NOT sources)
    return()
  endif()
  add_library(tenon_kernels_${isa} OBJECT ${sources})
  target_include_directories(tenon_kernels_${isa} PRIVATE include src)
  target_link_libraries(tenon_kernels_${isa} PRIVATE tenon_flags)
  target_compile_options(tenon_kernels_${isa} PRIVATE -O3 ${ARGN})
  # GCC 12 spends two thirds of its time for these files in the instruction combiner. Combining at most two instructions
  # compiles them in 21 instead of 50 seconds; decoding stays as fast (0.995 of before, 15 pairs, 1B Q4_K_M).
  if(isa MATCHES "^(avx512|amx)$" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/backend/cpu/kernels/${isa}/gemv.c PROPERTIES
      COMPILE_OPTIONS "--param=max-combine-insns=2")
  endif()
  if(TENON_FUZZ) # fuzz targets use the generic kernels; sanitizing these would take a minute per file
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "-O1;-fno-sanitize=all")
  endif()
  set(TENON_KERNEL_OBJECTS ${TENON_KERNEL_OBJECTS} $<TARGET_OBJECTS:tenon_kernels_${isa}> PARENT_SCOPE)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi -mprefer-vector-width=512)
  tenon_kernels(avx2 ${avx2})
  tenon_kernels(avx512 ${avx512})
  tenon_kernels(avx512bf16 ${avx512} -mavx512bf16)
  tenon_kernels(amx ${avx512} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  tenon_kernels(neon -march=armv8.2-a+dotprod+fp16)
  tenon_kernels(neon_i8mm -march=armv8.2-a+dotprod+fp16+i8mm)
endif()

# The one CMake file of the overlay. It adds our sources to upstream's targets and defines ours:
#   lucebox         liblucebox.so, the C API of include/lucebox.h
#   lucebox-tests   every tests/test-lucebox-*.cpp and tests/bench-lucebox-*.cpp, and lucebox-logits
# Included at the end of the top CMakeLists.txt, when all of upstream's targets exist.
# GPU kernels need no entry: upstream globs ggml/src/ggml-cuda for CUDA and for HIP.

cmake_minimum_required(VERSION 3.18) # source properties of another directory's target

set(LUCEBOX_SERIES_SHA256 "unknown" CACHE STRING "hash of the patch series and overlay this tree was made from")
option(LUCEBOX_BUILD_TESTS "define the native tests" ON)

if (NOT TARGET ggml-cpu)
    message(FATAL_ERROR "lucebox needs the target ggml-cpu: configure without GGML_CPU_ALL_VARIANTS")
endif()

set(LUCEBOX_ROOT ${CMAKE_CURRENT_LIST_DIR}/..)

# Codecs, into ggml-base; files named *-cpu.c belong to the CPU back-end.
file(GLOB lucebox_cpu CONFIGURE_DEPENDS
    ${LUCEBOX_ROOT}/ggml/src/ggml-rocmfpx/*-cpu.c
    ${LUCEBOX_ROOT}/ggml/src/ggml-cpu/rocmfpx-*.cpp
    ${LUCEBOX_ROOT}/ggml/src/ggml-ds4/*-cpu.c)
file(GLOB lucebox_base CONFIGURE_DEPENDS
    ${LUCEBOX_ROOT}/ggml/src/ggml-rocmfpx/*.c
    ${LUCEBOX_ROOT}/ggml/src/ggml-ds4/*.c)
list(REMOVE_ITEM lucebox_base ${lucebox_cpu})

# Float semantics are part of the formats: a contracted multiply-add or a reassociated sum changes bytes.
# Source options follow target and user flags on the command line, so these win.
foreach (pair "ggml-base:lucebox_base" "ggml-cpu:lucebox_cpu")
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 target)
    list(GET pair 1 sources)
    if (${sources})
        target_sources(${target} PRIVATE ${${sources}})
        set_source_files_properties(${${sources}} TARGET_DIRECTORY ${target}
            PROPERTIES COMPILE_OPTIONS "-ffp-contract=off;-fno-fast-math")
    endif()
    if (CMAKE_SYSTEM_NAME STREQUAL "Linux")
        # a function that a table names and no file defines fails here, not in a user's first run
        target_link_options(${target} PRIVATE "LINKER:-z,defs")
    endif()
endforeach()
target_include_directories(ggml-base PRIVATE ${LUCEBOX_ROOT}/ggml/src)

file(GLOB lucebox_llama CONFIGURE_DEPENDS ${LUCEBOX_ROOT}/src/lucebox-*.cpp)
target_sources(llama PRIVATE ${lucebox_llama})
set_source_files_properties(${lucebox_llama} TARGET_DIRECTORY llama PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if (TARGET llama-server-impl)
    target_sources(llama-server-impl PRIVATE ${LUCEBOX_ROOT}/tools/server/lucebox-memory.cpp)
endif()

set_property(TARGET ggml APPEND PROPERTY PUBLIC_HEADER
    ${LUCEBOX_ROOT}/ggml/include/ggml-rocmfpx.h
    ${LUCEBOX_ROOT}/ggml/include/ggml-rocmfpx-types.h)

# liblucebox: nothing is visible but lucebox_*, not even what the C++ library's templates would export.
file(GLOB lucebox_sources CONFIGURE_DEPENDS ${LUCEBOX_ROOT}/src/lucebox/*.cpp)
set(lucebox_exports ${CMAKE_CURRENT_LIST_DIR}/exports.map)
add_library(lucebox SHARED ${lucebox_sources})
target_compile_features(lucebox PRIVATE cxx_std_17)
target_compile_definitions(lucebox PRIVATE LUCEBOX_BUILD)
target_include_directories(lucebox PUBLIC ${LUCEBOX_ROOT}/include PRIVATE ${LUCEBOX_ROOT}/vendor)
target_link_libraries(lucebox PRIVATE llama ggml)
target_link_options(lucebox PRIVATE "LINKER:--version-script=${lucebox_exports}" "LINKER:--no-undefined")
set_target_properties(lucebox PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${lucebox_exports})
set_source_files_properties(${LUCEBOX_ROOT}/src/lucebox/build-info.cpp PROPERTIES COMPILE_DEFINITIONS
    "LUCEBOX_UPSTREAM_BUILD=${LLAMA_BUILD_NUMBER};LUCEBOX_UPSTREAM_COMMIT=\"${LLAMA_BUILD_COMMIT}\";LUCEBOX_SERIES_SHA256=\"${LUCEBOX_SERIES_SHA256}\";LUCEBOX_COMPILER=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\"")

if (LUCEBOX_BUILD_TESTS)
    add_custom_target(lucebox-tests)
    # Models with random weights, for tests and benchmarks.
    add_library(lucebox-random STATIC ${LUCEBOX_ROOT}/tests/random-ds4.cpp ${LUCEBOX_ROOT}/tests/ring-stream.cpp
        ${LUCEBOX_ROOT}/tests/fake-gpu.cpp)
    target_compile_features(lucebox-random PRIVATE cxx_std_17)
    target_link_libraries(lucebox-random PUBLIC llama ggml)

    file(GLOB lucebox_tests CONFIGURE_DEPENDS
        ${LUCEBOX_ROOT}/tests/test-lucebox-*.cpp
        ${LUCEBOX_ROOT}/tests/bench-lucebox-*.cpp)
    if (NOT TARGET ggml-cuda AND NOT TARGET ggml-hip) # they compare a GPU with the CPU
        list(FILTER lucebox_tests EXCLUDE REGEX "/test-lucebox-cuda-")
    endif()
    foreach (source ${lucebox_tests})
        get_filename_component(name ${source} NAME_WE)
        add_executable(${name} ${source})
        target_compile_features(${name} PRIVATE cxx_std_17)
        target_link_libraries(${name} PRIVATE lucebox-random)
        target_compile_options(${name} PRIVATE -UNDEBUG)
        add_dependencies(lucebox-tests ${name})
        if (BUILD_TESTING AND name MATCHES "^test-")
            add_test(NAME ${name} COMMAND ${name})
        endif()
    endforeach()

    if (TARGET ggml-cuda AND CMAKE_CUDA_COMPILER) # reading alone, which products are held against
        enable_language(CUDA)
        get_target_property(lucebox_gpus ggml-cuda CUDA_ARCHITECTURES)
        target_sources(bench-lucebox-gpu-kernels PRIVATE ${LUCEBOX_ROOT}/tests/gpu-read.cu)
        target_compile_definitions(bench-lucebox-gpu-kernels PRIVATE LUCEBOX_GPU_READ)
        set_target_properties(bench-lucebox-gpu-kernels PROPERTIES CUDA_ARCHITECTURES "${lucebox_gpus}")
    endif()

    # Needs a model, so it is no test of its own: the fidelity check runs it.
    add_executable(lucebox-logits ${LUCEBOX_ROOT}/tests/lucebox-logits.cpp)
    target_compile_features(lucebox-logits PRIVATE cxx_std_17)
    target_link_libraries(lucebox-logits PRIVATE llama ggml)
    add_dependencies(lucebox-tests lucebox-logits)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/fuzz.cmake)

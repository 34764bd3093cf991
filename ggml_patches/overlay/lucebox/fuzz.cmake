# The programs that meet hostile files, for a static build with sanitizers (tools/build_sanitized.py):
#   fuzz-lucebox-gguf   libFuzzer target: the GGUF header, then blocks of our types
#   fuzz-lucebox-load   loads the models named on its standard input, each in a process of its own

option(LUCEBOX_FUZZ "define the fuzz targets; needs clang" OFF)

if (LUCEBOX_FUZZ)
    # A hostile DeepSeek-V4 file reaches no other architecture's graph: those are linked, not watched.
    file(GLOB lucebox_models ${LUCEBOX_ROOT}/src/models/*.cpp)
    list(FILTER lucebox_models EXCLUDE REGEX "/(deepseek4|models)[^/]*$")
    set_source_files_properties(${lucebox_models} TARGET_DIRECTORY llama
        PROPERTIES COMPILE_OPTIONS "-O0;-g0;-fno-sanitize=all")

    # Tables of functions hold pointers of another type than the functions': so does all of ggml.
    foreach (target ggml-base ggml-cpu)
        target_compile_options(${target} PRIVATE -fno-sanitize=function)
    endforeach()

    add_custom_target(lucebox-fuzz)
    foreach (name fuzz-lucebox-gguf fuzz-lucebox-load)
        add_executable(${name} ${LUCEBOX_ROOT}/tests/${name}.cpp)
        target_compile_features(${name} PRIVATE cxx_std_17)
        add_dependencies(lucebox-fuzz ${name})
    endforeach()
    target_link_libraries(fuzz-lucebox-gguf PRIVATE ggml-base)
    target_link_options(fuzz-lucebox-gguf PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz-lucebox-load PRIVATE llama ggml)
endif()

// Loads models as a server does: header, tensors, data, context, one batch. Reads lines of paths, separated by
// tabs, from standard input, does those of a line in one process of their own and answers a line:
//   exit status (99 after a sanitizer's report), signal, largest resident set in KiB, milliseconds, and then
//   what was said of errors and the outcome of each file, of which there are fewer when one ended the process,
// separated by tabs, line ends escaped. Outcome: 0 decoded; 1 no model; 2 no context; 3 nothing decoded.

#include "ggml-backend.h"
#include "llama.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

static constexpr int TIME_LIMIT_S = 60;
static constexpr size_t MAX_TEXT  = 1 << 20;

// An allocation that a file of some KiB talks us into is a fault, too.
extern "C" const char * __asan_default_options() {
    return "exitcode=99:max_allocation_size_mb=1024:hard_rss_limit_mb=2048:detect_leaks=1";
}

extern "C" const char * __ubsan_default_options() {
    return "exitcode=99:print_stacktrace=1";
}

static void errors_only(ggml_log_level level, const char * text, void *) {
    static bool shown = false;
    shown             = level == GGML_LOG_LEVEL_CONT ? shown : level == GGML_LOG_LEVEL_ERROR;
    if (shown) {
        fputs(text, stderr);
    }
}

static int decode(llama_model * model) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = 256;
    params.n_batch              = 64;
    params.n_ubatch             = 64;
    params.n_threads            = 1;
    params.n_threads_batch      = 1;
    llama_context * context     = llama_init_from_model(model, params);
    if (!context) {
        return 2;
    }
    llama_token tokens[8];
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int i = 0; i < 8; i++) {
        tokens[i] = i % (n_vocab > 0 ? n_vocab : 1);
    }
    const int status = llama_decode(context, llama_batch_get_one(tokens, 8));
    llama_synchronize(context);
    llama_free(context);
    return status == 0 ? 0 : 3;
}

static int load(const std::string & path) {
    llama_model_params params = llama_model_default_params();
    params.check_tensors      = true;
    llama_model * model       = llama_model_load_from_file(path.c_str(), params);
    if (!model) {
        return 1;
    }
    const int status = decode(model);
    llama_model_free(model);
    return status;
}

static std::string read_all(int fd) {
    std::string text;
    char part[4096];
    for (ssize_t n; (n = read(fd, part, sizeof(part))) > 0;) {
        if (text.size() < MAX_TEXT) {
            text.append(part, n);
        }
    }
    return text;
}

static std::string on_one_line(const std::string & text) {
    std::string line;
    for (const char c : text) {
        line += c == '\n' ? "\\n" : std::string(1, c);
    }
    return line;
}

static int load_each(const std::string & line) {
    for (size_t start = 0; start <= line.size();) {
        const size_t end = std::min(line.find('\t', start), line.size());
        alarm(TIME_LIMIT_S);
        const int outcome = load(line.substr(start, end - start));
        fprintf(stderr, "\t%d\t", outcome);
        start = end + 1;
    }
    return 0;
}

static bool answer(const std::string & line) {
    const auto start = std::chrono::steady_clock::now();
    int ends[2];
    if (pipe(ends) != 0) {
        return false;
    }
    const pid_t child = fork();
    if (child < 0) {
        return false;
    }
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        exit(load_each(line));
    }
    close(ends[1]);
    const std::string text = on_one_line(read_all(ends[0]));
    close(ends[0]);
    int status;
    rusage usage;
    if (wait4(child, &status, 0, &usage) != child) {
        return false;
    }
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
    printf("%d\t%d\t%ld\t%ld\t%s\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
           WIFSIGNALED(status) ? WTERMSIG(status) : 0, usage.ru_maxrss, (long) ms, text.c_str());
    fflush(stdout);
    return true;
}

int main() {
    setenv("GGML_NO_BACKTRACE", "1", 1); // a debugger would be started for it
    llama_backend_init();
    llama_log_set(errors_only, nullptr);
    std::string line;
    while (std::getline(std::cin, line)) {
        if (!answer(line)) {
            perror("fuzz-lucebox-load");
            return 1;
        }
    }
    return 0;
}

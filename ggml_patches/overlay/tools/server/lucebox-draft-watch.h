#pragma once

// Owns: notices a drafter that is at work and proposes nothing, says so once with what is known of the reason, and
// counts for /metrics. One server a process.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

inline std::atomic<uint64_t> lucebox_drafts_asked{0}; // times that the drafter was asked for a draft
inline std::atomic<uint64_t> lucebox_drafts_empty{0}; // times that it proposed nothing

class lucebox_draft_watch {
  public:
    static constexpr uint64_t SILENT_TOKENS = 64; // generated without one proposal: no longer chance

    void on_draft(size_t n_proposed) {
        lucebox_drafts_asked++;
        lucebox_drafts_empty += n_proposed == 0;
        done |= n_proposed > 0;
    }

    // Count the tokens of a round. Returns a warning the first time that the drafter counts as silent, else "".
    std::string on_tokens(size_t n_tokens, float p_min) {
        n_generated += n_tokens;
        if (done || n_generated < SILENT_TOKENS) {
            return "";
        }
        done = true;

        const std::string start = "the drafter proposed nothing in " + std::to_string(n_generated) + " tokens: ";
        if (lucebox_drafts_asked == 0) {
            return start + "it was never asked, since no slot had room for a draft (context size, token limit)";
        }
        const std::string asked =
            start + "asked " + std::to_string(lucebox_drafts_asked) + " times, it returned none; ";
        return asked + (p_min > 0.0f
                            ? "each first draft lies below --spec-draft-p-min " + std::to_string(p_min) +
                                  ", or its errors are above"
                            : "it fails on this back-end, see its errors above; --spec-type none saves its time");
    }

  private:
    uint64_t n_generated = 0;
    bool done            = false; // nothing to say any more
};

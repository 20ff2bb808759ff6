// SPDX-License-Identifier: Apache-2.0
// Drafts: which are offered, which become rows, and how the model judges them.
#include <algorithm>
#include <span>
#include <vector>

#include "tests/scheduler/fake_engine.h"

namespace sluice {

// Offers drafts for some requests in any state. Each token is right with the episode's probability;
// behind a wrong one the rest is right for another prefix.
void FakeEngine::offer_drafts() {
  for (const size_t i : live_) {
    Shadow& shadow = shadows_[i];
    shadow.offered.clear();
    if (draft_rate_ == 0 || !chance(draft_rate_)) continue;
    uint64_t hash = shadow.prefix_hash.back();
    // Continues behind what steps in flight choose if all their drafts are accepted.
    const int32_t ahead = options_.follows_drafts ? scheduler_->num_unchosen(shadow.id) : 0;
    for (int32_t left = ahead; left > 0; --left) {
      hash = extended(hash, next_token(hash, vocab_size_));
    }
    for (int32_t left = between(1, 9); left > 0; --left) {
      const TokenId right = next_token(hash, vocab_size_);
      const TokenId token = chance(right_draft_rate_) ? right : between(0, vocab_size_ - 1);
      shadow.offered.push_back(token);
      hash = extended(hash, token);
    }
    Draft draft;
    for (const TokenId token : shadow.offered) draft.push(token, confidence_bin(between(1, 20), 0));
    scheduler_->offer_drafts(shadow.id, draft);
  }
}

void FakeEngine::see_drafts(Row& row, std::span<const TokenId> token_ids, EpisodeStats& stats) {
  Shadow& shadow = shadows_[row.shadow];
  const ScheduledRequest& scheduled = row.scheduled;
  const auto num_drafts = static_cast<size_t>(scheduled.num_draft_tokens);
  const int32_t end = scheduled.end() - scheduled.num_draft_tokens;
  for (int32_t position = scheduled.num_computed_tokens; position < end; ++position) {
    const bool is_known = position < shadow.num_tokens();
    const TokenId expected =
        is_known ? shadow.tokens[static_cast<size_t>(position)] : kInvalidToken;
    if (token_ids[static_cast<size_t>(position - scheduled.num_computed_tokens)] != expected) {
      wrong("a row has another token");
    }
  }
  if (num_drafts == 0) return;
  const std::span<const TokenId> drafts = token_ids.last(num_drafts);
  const std::vector<TokenId>& offered = shadow.offered;
  if (num_drafts > offered.size() ||
      !std::ranges::equal(drafts, std::span(offered).first(num_drafts))) {
    return wrong("drafts that were not offered");
  }
  const int32_t num_upcoming = shadow.num_pending - 1 + scheduled.num_unsure;
  if (end != shadow.num_tokens() + num_upcoming) return wrong("drafts in another place");
  if (num_upcoming > 0 && !options_.follows_drafts) {
    return wrong("drafts behind a token that is not known");
  }
  if (end + scheduled.num_draft_tokens + 1 - shadow.num_prompt_tokens > shadow.max_tokens) {
    return wrong("drafts beyond max_tokens");
  }
  stats.num_drafted_tokens += num_drafts;
  shadow.num_drafts_in_flight += scheduled.num_draft_tokens;
  row.drafts.assign(drafts.begin(), drafts.end());
}

// When its step begins, moves the row behind the tokens that the request has by now.
void FakeEngine::put_in_place(Row& row) {
  const Shadow& shadow = shadows_[row.shadow];
  ScheduledRequest& scheduled = row.scheduled;
  if (scheduled.chosen.empty()) return;
  const int32_t back = scheduled.chosen.begin + 1 - shadow.num_tokens();
  if (back < 0 || back > scheduled.num_unsure) return wrong("a row is out of reach of its place");
  scheduled.num_computed_tokens -= back;
  scheduled.chosen.begin -= back;
  scheduled.chosen.end -= back;
  uint64_t hash = shadow.prefix_hash.back();
  for (const TokenId token : row.drafts) row.draft_hash.push_back(hash = extended(hash, token));
}

// Hash of the first `num_tokens` tokens in the row's view: known tokens, then its drafts.
uint64_t FakeEngine::hash_at(const Row& row, int32_t num_tokens) const {
  const int32_t num_known = row.scheduled.end() - row.scheduled.num_draft_tokens;
  const int32_t num_drafts = num_tokens - num_known;
  if (num_drafts > 0) return row.draft_hash[static_cast<size_t>(num_drafts) - 1];
  return shadows_[row.shadow].prefix_hash[static_cast<size_t>(num_tokens)];
}

// Narrows the windows of rows in flight whose beginning behind drafts is now known: they touch no
// earlier block, and the scheduler frees those while the rows are in flight. check_reads() finds a
// null block if this frees one that a row reads, and check_blocks_are_kept() one that this keeps
// and the scheduler has freed.
void FakeEngine::narrow_windows(size_t shadow) {
  const int32_t start = shadows_[shadow].num_tokens() - 1;
  for (Step& step : in_flight_) {
    for (Row& row : step.rows) {
      if (row.shadow != shadow || row.scheduled.num_unsure == 0) continue;
      for (size_t g = 0; g < groups_.size(); ++g) {
        if (groups_[g].kind != KvGroupKind::kWindow) continue;
        const int32_t first = std::max(0, start - groups_[g].window + 1) / kv_options_.block_size;
        for (BlockId& block : std::span(row.tables[g]).first(static_cast<size_t>(first))) {
          if (block != kNullBlock) --readers_[g][static_cast<size_t>(block.value)];
          block = kNullBlock;
        }
      }
    }
  }
}

// Checks that requests hold all blocks of their rows in flight, whatever retires.
void FakeEngine::check_blocks_are_kept() {
  for (const Step& step : in_flight_) {
    for (const Row& row : step.rows) {
      for (size_t g = 0; g < groups_.size(); ++g) {
        const auto held = kv_->block_table(row.scheduled.id, static_cast<int32_t>(g));
        for (size_t entry = 0; entry < row.tables[g].size(); ++entry) {
          const BlockId block = row.tables[g][entry];
          if (block == kNullBlock) continue;
          if (entry >= held.size() || held[entry] != block) {
            return wrong("a block was let go that a row in flight touches");
          }
        }
      }
    }
  }
}

// Appends to the request the model's tokens behind the row's known tokens and behind each right
// draft, and returns them.
std::vector<TokenId> FakeEngine::choose(const Row& row, bool& ends, EpisodeStats& stats) {
  Shadow& shadow = shadows_[row.shadow];
  const int32_t first = row.scheduled.chosen.begin + 1;
  std::vector<TokenId> chosen;
  while (true) {
    const uint64_t hash = hash_at(row, first + static_cast<int32_t>(chosen.size()));
    const size_t next = chosen.size();
    chosen.push_back(next_token(hash, vocab_size_));
    append_token(shadow, chosen.back());
    const bool last = shadow.num_tokens() - shadow.num_prompt_tokens == shadow.max_tokens;
    ends = last || ends_here(hash);
    const bool is_right = next < row.drafts.size() && row.drafts[next] == chosen.back();
    if (ends || !is_right) break;
  }
  const size_t num_right = chosen.size() - 1;
  if (shadow.ended || shadow.aborting) return chosen;
  stats.num_accepted_tokens += num_right;
  shares_[shadow.tenant].counter += 2 * static_cast<int64_t>(num_right);
  if (num_right > 0) shadow.next_position += static_cast<int32_t>(num_right);
  return chosen;
}

}  // namespace sluice

// SPDX-License-Identifier: Apache-2.0
// From a row of logits to a token and its log-probabilities; a pure function of the row and its
// parameters.
//
// Candidates are the allowed tokens in the total order (logit descending, id ascending); x_max is
// the logit of the first, z_i = (x_i - x_max) / temperature, w_i = exp(z_i) in fp32, so that the
// probability of i relative to the likeliest candidate is w_i. Every filter keeps a prefix of the
// order, at least one token:
//   top_k  keeps the first k;
//   min_p  ends the prefix before the first token with w_i < min_p;
//   top_p  ends it with the token where the running sum of w reaches top_p * S (in fp64); the sum
//          is of whole units of 2^-40, each w rounded down, so it is exact; S = sum of w over what
//          top_k left, fp32, in 16 lanes (lane i % 16, ids ascending) folded by halves.
// Among the kept, the token with the largest z_i + gumbel(seed, position, token) wins (ties: lowest
// id). gumbel = -log(-log(u)), u = n / 2^31, n = (r >> 1) | 1, r = word (token / 16) % 4 of
// Philox4x32-10 at counter (token / 64 * 16 + token % 16, position low, position high, 0) under the
// key (seed low, seed high): a pure function, so no order of evaluation matters. temperature 0: the
// first of the order.
// Log-probabilities: x_i - (max + log(sum exp(x_j - max))) over the unmodified logits of the whole
// vocabulary, masked tokens included; sum in 16 lanes (j % 16, in order), folded by halves. exp and
// log are this library's (kernels/cpu/isa/math16.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/core/types.h"
#include "kernels/device.h"

namespace sluice::kernels {

// The largest vocabulary; models with more tokens are refused at load.
inline constexpr int32_t kMaxVocabSize = 1 << 21;

struct TokenScore {
  TokenId token = kInvalidToken;
  float logprob = 0;
};

struct SampleRow {
  const float* logits = nullptr;           // [vocab]
  const uint32_t* allowed_mask = nullptr;  // bit i: token i may be chosen; null: all. Not empty.
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;  // <= 0: off
  uint64_t seed = 0;
  int64_t position = 0;       // absolute position of the token being chosen
  int32_t num_logprobs = -1;  // -1: none, no log-probabilities are computed
  bool choose = true;         // false: `token` is given, only its log-probabilities are computed
  // Results.
  TokenId token = kInvalidToken;
  float logprob = 0;                        // log-probability of `token`; num_logprobs >= 0
  std::span<TokenScore> top_logprobs = {};  // sized num_logprobs by the caller; best first
  bool finite = true;                       // false: a logit is NaN or infinite; token is invalid
};

// Samples rows in parallel. `rows` and the memory they point to are where operators read and write.
struct SampleArgs {
  std::span<SampleRow> rows;
  int32_t vocab_size;
  std::span<std::byte> workspace;  // size: the functions below; on a device 64-byte aligned
  // [rows]: their tokens, kInvalidToken for a row without one. Null: not wanted.
  TokenId* chosen = nullptr;
};

// Bytes of the CPU's workspace.
int64_t sampling_workspace_bytes(int32_t vocab_size, int32_t num_threads);
// Bytes of the workspace of a device that samples at most max_rows rows at once.
int64_t device_sampling_workspace_bytes(DeviceType device, int32_t vocab_size, int64_t max_rows);
void sample(const ExecContext& ctx, const SampleArgs& args);

// A row of a step whose input token is one that the previous step chose.
struct PendingToken {
  int32_t row;
  int32_t from;  // index into the tokens that the previous step chose
};

// token_ids[pending.row] = chosen[pending.from], or 0 where that is no token: after a rank has
// failed, another rank's `chosen` may hold anything.
struct TakeTokensArgs {
  std::span<const PendingToken> pending;
  const TokenId* chosen;
  TokenId* token_ids;
  int32_t vocab_size;
};

void take_tokens(const ExecContext& ctx, const TakeTokensArgs& args);

// A row of a request whose drafts the previous step judges. Its arrays hold its place for the case
// that all drafts are accepted; it moves back by the number of rejected ones.
struct FollowingRow {
  int32_t row;          // index in this step
  int32_t sample;       // index among this step's sampled rows
  int32_t request;      // index in this step, of the block tables that the row reads
  int32_t length;       // its request's entry of seq_lens, for one row a request; else -1
  int32_t takes_token;  // 1: its token is the one after the last accepted draft
  int32_t from;         // the request's first chosen row of the previous step
  int32_t drafts;       // index in the list of drafts, of those after that row
  int32_t num_drafts;
};

// Draft i is accepted where chosen[from + i] is that token and all drafts before it are accepted;
// the token chosen after the last accepted draft is the request's next token. A chosen row without
// a token ends the request's tokens before it; the first always counts.
struct PlaceFollowingArgs {
  static constexpr size_t kMostGroups = 8;

  struct Group {
    int64_t* slot_mapping;       // [rows]
    const int32_t* block_table;  // [requests][stride]
    int64_t stride;
    int32_t tokens_per_entry;
  };

  std::span<const FollowingRow> following;
  const TokenId* drafts;
  const TokenId* chosen;  // the previous step's
  int32_t vocab_size;
  // Arrays of this step.
  TokenId* token_ids;
  int32_t* positions;
  int32_t* seq_lens;
  SampleRow* samples;  // null: no sample moves
  std::array<Group, kMostGroups> groups;
  int32_t num_groups;
};

// Returns how many tokens the request got in the previous step, 1 to 1 + num_drafts.
constexpr int32_t num_tokens_of(const FollowingRow& row,
                                const TokenId* drafts,
                                const TokenId* chosen) {
  for (int32_t i = 0; i < row.num_drafts; ++i) {
    const TokenId token = chosen[row.from + i];
    if (token < 0) return i > 1 ? i : 1;
    if (token != drafts[row.drafts + i]) return i + 1;
  }
  const int32_t all = row.num_drafts + 1;
  return chosen[row.from + row.num_drafts] < 0 && all > 1 ? all - 1 : all;
}

// Places one row; the operator does this for each.
constexpr void place_following_row(const PlaceFollowingArgs& args, const FollowingRow& row) {
  const int32_t num_tokens = num_tokens_of(row, args.drafts, args.chosen);
  const int32_t back = row.num_drafts + 1 - num_tokens;
  if (row.takes_token != 0) {
    const TokenId token = args.chosen[row.from + num_tokens - 1];
    args.token_ids[row.row] = token >= 0 && token < args.vocab_size ? token : 0;
  }
  const int32_t position = args.positions[row.row] - back;
  args.positions[row.row] = position;
  if (row.length >= 0) args.seq_lens[row.length] -= back;
  if (args.samples != nullptr) args.samples[row.sample].position -= back;
  for (int32_t i = 0; i < args.num_groups; ++i) {
    const PlaceFollowingArgs::Group& group = args.groups.data()[i];
    const int64_t block =
        group.block_table[row.request * group.stride + position / group.tokens_per_entry];
    group.slot_mapping[row.row] =
        block * group.tokens_per_entry + position % group.tokens_per_entry;
  }
}

// Call it before the first operator that reads the step.
void place_following(const ExecContext& ctx, const PlaceFollowingArgs& args);

}  // namespace sluice::kernels

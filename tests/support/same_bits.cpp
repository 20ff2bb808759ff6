// SPDX-License-Identifier: Apache-2.0
#include "tests/support/same_bits.h"

#include <cstring>
#include <utility>

#include "kernels/device.h"

namespace sluice::testing {
namespace {

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void expect_same_top(const std::vector<TokenLogprob>& a,
                     const std::vector<TokenLogprob>& b,
                     const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t k = 0; k < a.size(); ++k) {
    ASSERT_EQ(a[k].token, b[k].token) << what;
    ASSERT_TRUE(same_bits(a[k].logprob, b[k].logprob)) << what;
  }
}

void expect_same_prompt(const Collected& a, const Collected& b, const std::string& what) {
  ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size()) << what;
  for (size_t i = 0; i < a.prompt_logprobs.size(); ++i) {
    const PromptLogprob& left = a.prompt_logprobs[i];
    const PromptLogprob& right = b.prompt_logprobs[i];
    const std::string which = what + ", prompt token " + std::to_string(i + 1);
    ASSERT_EQ(left.token, right.token) << which;
    ASSERT_EQ(left.rank, right.rank) << which;
    ASSERT_TRUE(same_bits(left.logprob, right.logprob)) << which;
    expect_same_top(left.top_logprobs, right.top_logprobs, which);
  }
}

void expect_same_request(const Collected& a, const Collected& b, const std::string& what) {
  ASSERT_EQ(b.num_ends, 1) << what;
  ASSERT_EQ(a.tokens, b.tokens) << what;
  ASSERT_EQ(a.finish_reason, b.finish_reason) << what;
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << what;
  ASSERT_EQ(std::memcmp(a.logprobs.data(), b.logprobs.data(), a.logprobs.size() * sizeof(float)), 0)
      << what << ": log-probabilities differ in bits";
  expect_same_prompt(a, b, what);
  expect_same_top(a.top_logprobs, b.top_logprobs, what);
}

}  // namespace

std::unique_ptr<Engine> start_engine(const Config& config) {
  Expected<std::unique_ptr<Engine>> engine = create_engine(config);
  if (engine) return std::move(*engine);
  ADD_FAILURE() << engine.error().message;
  return nullptr;
}

std::vector<std::string> usable_isas() {
  std::vector<std::string> isas;
  for (const char* isa : {"scalar", "avx2", "avx512", "amx"}) {
    if (kernels::Device::create({.isa = isa, .threads = 1})) isas.emplace_back(isa);
  }
  return isas;
}

std::vector<ValidRequest> seeded_requests(int32_t count) {
  std::vector<ValidRequest> list;
  for (int32_t seed = 0; seed < count; ++seed) {
    ValidRequest request;
    std::vector<TokenId> prompt(static_cast<size_t>(20 + 30 * seed));
    for (size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = static_cast<TokenId>((i * i * 31 + i * 7 + static_cast<size_t>(seed)) % 250);
    }
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = 24;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = seed == 0 ? 0.0F : 0.8F;
    request.sampling.seed = static_cast<uint64_t>(seed);
    request.sampling.num_logprobs = 0;
    list.push_back(std::move(request));
  }
  return list;
}

std::vector<Collected> run_together(Engine& engine, const std::vector<ValidRequest>& requests) {
  CollectingSink sink;
  std::vector<RequestId> ids;
  for (const ValidRequest& request : requests) {
    const Expected<RequestId> id = engine.submit(request, sink);
    if (id) {
      ids.push_back(*id);
    } else {
      ADD_FAILURE() << id.error().message;
    }
  }
  std::vector<Collected> results;
  for (const RequestId id : ids) results.push_back(sink.wait(id));
  return results;
}

std::vector<Collected> run_alone(Engine& engine, const std::vector<ValidRequest>& requests) {
  std::vector<Collected> results;
  for (const ValidRequest& request : requests) {
    for (Collected& result : run_together(engine, {request})) results.push_back(std::move(result));
  }
  return results;
}

void expect_same(const std::vector<Collected>& expected,
                 const std::vector<Collected>& actual,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    expect_same_request(expected[i], actual[i], what + ", request " + std::to_string(i));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace sluice::testing

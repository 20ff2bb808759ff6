// SPDX-License-Identifier: Apache-2.0
// Every family against outputs that were written by hand, under every cut.
#include <gtest/gtest.h>

#include "tests/server/tools/goldens.h"
#include "tests/server/tools/transcript.h"

namespace sluice {
namespace {

void expect_goldens(const std::vector<GoldenFamily>& families) {
  for (const GoldenFamily& family : families) {
    SCOPED_TRACE(std::string(family.calls) + " " + std::string(family.reasoning));
    const TestFormat format(family.calls, family.reasoning, family.specials);
    for (const Golden& golden : family.goldens) {
      const Transcript transcript{.text = std::string(golden.text),
                                  .prompt_tail = std::string(golden.prompt_tail),
                                  .reason = golden.reason};
      EXPECT_EQ(describe(parse_every_way(format, transcript)), golden.pieces) << golden.text;
    }
  }
}

TEST(FamilyGoldens, CallsAsJson) { expect_goldens(json_goldens()); }

TEST(FamilyGoldens, CallsInTags) { expect_goldens(tagged_goldens()); }

TEST(FamilyGoldens, CallsAsNameAndJson) { expect_goldens(named_goldens()); }

TEST(FamilyGoldens, CallsAsCode) { expect_goldens(code_goldens()); }

TEST(FamilyGoldens, MessagesAndTags) { expect_goldens(channel_goldens()); }

}  // namespace
}  // namespace sluice

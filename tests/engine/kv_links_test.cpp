// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_links.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace sluice {
namespace {

KvLinkOptions small() {
  KvLinkOptions options;
  options.num_tokens = 500;  // 31 whole blocks of 192 KiB
  options.slot_bytes = 1 << 20;
  options.buffer_bytes = 3 << 20;
  options.rounds = 2;
  return options;
}

TEST(KvLinks, MeasuresEveryTransportBesideItsLimit) {
  const auto figures = measure_kv_links(small());
  ASSERT_TRUE(figures.has_value()) << figures.error().message;
  EXPECT_EQ(figures->num_bytes, 31 * 24 * 2 * 16 * 64 * 2 * 2);
  std::map<std::string, KvLinkFigure> links;
  for (const KvLinkFigure& figure : figures->links) {
    EXPECT_GT(figure.seconds, 0) << figure.name;
    links[figure.name] = figure;
  }
  ASSERT_EQ(links.size(), 4u);
  EXPECT_EQ(links.at("tcp").limit, "socket copy");
  EXPECT_EQ(links.at("shm").limit, "memcpy");
  for (const char* name : {"tcp", "shm"}) {
    const KvLinkFigure& figure = links.at(name);
    EXPECT_EQ(figure.num_frames, 7);   // five blocks each, and one in the last
    EXPECT_GE(figure.num_credits, 2);  // three slots cannot take everything
    EXPECT_EQ(figure.num_messages, figure.num_credits + 5);
    EXPECT_NEAR(figure.share, links.at(figure.limit).seconds / figure.seconds, 1e-9);
  }
}

TEST(KvLinks, SizesOfWhichNoFrameCanBeMadeAreRefused) {
  for (int which = 0; which < 3; ++which) {
    KvLinkOptions options = small();
    if (which == 0) options.num_tokens = 15;
    if (which == 1) options.slot_bytes = 100'000;
    if (which == 2) options.buffer_bytes = 1 << 19;
    const auto figures = measure_kv_links(options);
    ASSERT_FALSE(figures.has_value()) << which;
    EXPECT_EQ(figures.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice

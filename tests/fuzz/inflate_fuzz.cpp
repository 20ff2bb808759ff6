// SPDX-License-Identifier: Apache-2.0
// Any bytes as a gzip body: never more than the bound, and what our own compressor made comes back.
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/core/status.h"
#include "server/http/inflate.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxBytes = 1 << 20;
constexpr int32_t kMaxRatio = 100;
constexpr int kGzip = 15 + 16;  // zlib's window bits for a gzip header

std::string gzip(std::string text) {
  z_stream stream = {};
  CHECK_EQ(deflateInit2(&stream, 1, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  CHECK_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace
}  // namespace sluice

static int inflate_input(const uint8_t* data, size_t size) {
  using namespace sluice;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const auto inflated = inflate_gzip(input, kMaxBytes, kMaxRatio);
  if (inflated) CHECK_LE(inflated->size(), kMaxBytes);
  // Below the size from which the ratio counts.
  if (size <= kUncheckedInflatedBytes) {
    const auto again = inflate_gzip(gzip(input), kMaxBytes, kMaxRatio);
    CHECK(again.has_value());
    CHECK(*again == input);
  }
  return 0;
}

const sluice::fuzz::Target inflate_target("inflate_fuzz", inflate_input);

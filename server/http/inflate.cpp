// SPDX-License-Identifier: Apache-2.0
#include "server/http/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

namespace sluice {
namespace {

struct EndInflate {
  z_stream& stream;

  ~EndInflate() { inflateEnd(&stream); }
};

}  // namespace

Expected<std::string> inflate_gzip(std::string_view compressed,
                                   uint64_t max_bytes,
                                   int32_t max_ratio) {
  const auto bad = [](const char* why) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::string("The request body is not valid gzip: ") + why + ".");
  };
  z_stream stream = {};
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (compressed.size() > std::numeric_limits<uInt>::max() ||
      inflateInit2(&stream, kGzipOnly) != Z_OK) {
    return make_error(ErrorCode::kResourceExhausted, "The request body cannot be inflated.");
  }
  const EndInflate end{stream};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  const uint64_t bound = std::min(
      max_bytes,
      std::max(kUncheckedInflatedBytes, compressed.size() * static_cast<uint64_t>(max_ratio)));
  std::string out;
  int status = Z_OK;
  while (status == Z_OK) {
    const size_t done = out.size();
    // One byte beyond the limit shows that the output is too large.
    const uint64_t room = std::min<uint64_t>(bound + 1 - done, 256 << 10);
    out.resize(done + room);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    stream.avail_out = static_cast<uInt>(room);
    status = inflate(&stream, Z_NO_FLUSH);
    out.resize(done + room - stream.avail_out);
    if (out.size() > bound) {
      return make_error(ErrorCode::kResourceExhausted,
                        bound == max_bytes ? "The inflated request body is larger than " +
                                                 std::to_string(max_bytes) + " bytes."
                                           : "The request body inflates to more than " +
                                                 std::to_string(max_ratio) + " times its size.");
    }
  }
  if (status == Z_BUF_ERROR) return bad("it is cut off");
  if (status != Z_STREAM_END) return bad(stream.msg != nullptr ? stream.msg : "it is damaged");
  if (stream.avail_in > 0) return bad("something follows it");
  return out;
}

}  // namespace sluice

// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes from the other end of the socket between the engine and its compile process: a
// frame is no longer than asked for, what is in it is refused or has values of its kinds, and comes
// back the same.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/sampling/grammar/compile_protocol.h"
#include "engine/sampling/grammar/frames.h"
#include "tests/fuzz/target.h"

namespace {

using namespace sluice;

void take_reply(std::string_view bytes) {
  const auto reply = decode_reply(bytes);
  if (!reply && reply.error().code == ErrorCode::kDataLoss) return;
  CHECK(reply || reply.error().code <= ErrorCode::kInternal);
  const auto again = decode_reply(encode_reply(reply));
  CHECK_EQ(again.has_value(), reply.has_value());
  CHECK(reply ? *again == *reply : again.error().message == reply.error().message);
}

void take_spec(std::string_view bytes) {
  const auto spec = decode_spec(bytes);
  if (!spec) return;
  CHECK(spec->kind <= GrammarKind::kStructuralTag);
  const auto again = decode_spec(encode_spec(*spec));
  CHECK(again.has_value());
  CHECK(*again == *spec);
}

void take_setup(std::string_view bytes) {
  const auto setup = decode_setup(bytes);
  if (!setup) return;
  const std::string again = encode_setup(*setup);
  const auto twice = decode_setup(again);
  CHECK(twice.has_value());
  CHECK(encode_setup(*twice) == again);
  CHECK(twice->vocabulary.tokens == setup->vocabulary.tokens);
}

}  // namespace

// The first byte: whether the rest is sent as it is, or as one frame, since few inputs have a right
// length by themselves.
static int compile_frame_input(const uint8_t* data, size_t size) {
  constexpr size_t kMost = 1 << 15;
  if (size == 0 || size > 2 * kMost) return 0;
  std::array<int, 2> sockets{};
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  if (data[0] % 2 == 0) {
    CHECK_EQ(send(sockets[1], text.data(), text.size(), MSG_DONTWAIT),
             static_cast<ssize_t>(text.size()));
  } else {
    CHECK(write_frame(sockets[1], text, deadline));
  }
  close(sockets[1]);
  while (const auto frame = read_frame(sockets[0], kMost, deadline)) {
    CHECK_LE(frame->size(), kMost);
    take_reply(*frame);
    take_spec(*frame);
    take_setup(*frame);
  }
  close(sockets[0]);
  return 0;
}

const sluice::fuzz::Target compile_frame_target("compile_frame_fuzz", compile_frame_input);

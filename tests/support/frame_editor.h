// SPDX-License-Identifier: Apache-2.0
// Whole KV frames from the bytes of connections, for a FaultProxy to change.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kv_checksum.h"
#include "kvcache/transport/kv_frame.h"

namespace sluice::test {

class FrameEditor {
 public:
  using Frame = std::vector<std::byte>;  // header and payload

  // `edit` returns the frames that replace one that came. It runs on the proxy's thread.
  explicit FrameEditor(std::function<std::vector<Frame>(bool is_answer, Frame)> edit)
      : edit_(std::move(edit)) {}

  // The call operator is a FaultProxy::Edit.
  void operator()(size_t connection, bool is_answer, std::vector<std::byte>& bytes) {
    std::vector<std::byte>& rest = rest_[{connection, is_answer}];
    rest.insert(rest.end(), bytes.begin(), bytes.end());
    bytes.clear();
    while (rest.size() >= kKvFrameBytes) {
      const auto header = decode_kv_frame(std::span(rest).first<kKvFrameBytes>());
      const size_t size = kKvFrameBytes + (header ? header->payload_bytes : 0);
      if (rest.size() < size) return;
      const auto end = rest.begin() + static_cast<std::ptrdiff_t>(size);
      for (const Frame& frame : edit_(is_answer, Frame(rest.begin(), end))) {
        bytes.insert(bytes.end(), frame.begin(), frame.end());
      }
      rest.erase(rest.begin(), end);
    }
  }

  // Corrects the checksums of a frame whose bytes were changed.
  static void sum(Frame& frame) {
    const auto header = std::span(frame).first<kKvFrameBytes>();
    KvFrame decoded = *decode_kv_frame(header);
    decoded.payload_sum = kernels::kv_checksum(std::span(frame).subspan(kKvFrameBytes));
    encode_kv_frame(decoded, header);
  }

 private:
  std::function<std::vector<Frame>(bool, Frame)> edit_;
  std::map<std::pair<size_t, bool>, std::vector<std::byte>> rest_;
};

}  // namespace sluice::test

// SPDX-License-Identifier: Apache-2.0
// Bytes of a gRPC client through message, decoder and validator. The first byte picks the method.
#include <sluice.pb.h>
#include <vllm_engine.pb.h>

#include <cstddef>
#include <cstdint>

#include "server/grpc/request_decoder.h"
#include "tests/fuzz/request_oracle.h"
#include "tests/fuzz/target.h"

namespace {

template <typename Message, typename... Stream>
void decode_bytes(const uint8_t* data, size_t size, Stream... stream) {
  Message message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return;  // gRPC refuses it itself
  sluice::IgnoredArguments ignored(sluice::UnknownArguments::kIgnore);
  sluice::judge(sluice::decode(sluice::fuzz_context(), message, ignored, stream...));
  sluice::check_header_value(ignored);
}

}  // namespace

static int grpc_request_input(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t* body = data + 1;
  const bool stream = (data[0] & 4) != 0;
  switch (data[0] & 3) {
    case 0:
      decode_bytes<sluice::v1::CompletionRequest>(body, size - 1, stream);
      break;
    case 1:
      decode_bytes<sluice::v1::ChatRequest>(body, size - 1, stream);
      break;
    default:
      decode_bytes<vllm::grpc::engine::GenerateRequest>(body, size - 1);
  }
  return 0;
}

const sluice::fuzz::Target grpc_request_target("grpc_request_fuzz", grpc_request_input);

// SPDX-License-Identifier: Apache-2.0
// What requests for vectors and their answers have in common, whatever the API.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/core/status.h"
#include "server/front/front_end.h"
#include "server/json/json_writer.h"
#include "server/prompt/validation_context.h"

namespace sluice {

// Reads the body of a request of text-embeddings-inference: `inputs` and, beside them or in
// `parameters`, as clients of Hugging Face send them, how they are read.
[[nodiscard]] Expected<nlohmann::ordered_json> read_tei_body(const ValidationContext& context,
                                                             Exchange& exchange);

// Reads `name`, the elements wanted; 0: all. kInvalidArgument: more than there are, or the model's
// vectors are not made to be cut.
[[nodiscard]] Expected<int32_t> read_dimensions(const PoolingInfo& info,
                                                const nlohmann::ordered_json& body,
                                                const std::string& name = "dimensions");

// Elements of one vector of the answer.
[[nodiscard]] size_t vector_width(const PoolingInfo& info, const PoolingParams& params);

// Little-endian float32, as all clients expect it.
[[nodiscard]] std::string base64_of(const std::vector<float>& values);

void write_vector(JsonWriter& json, std::span<const float> vector);
// Writes a list of consecutive vectors of `width`.
void write_vectors(JsonWriter& json, std::span<const float> vectors, size_t width);

}  // namespace sluice

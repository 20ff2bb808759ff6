// SPDX-License-Identifier: Apache-2.0
// What models and requests of vectors are in worker.proto.
#pragma once

#include "engine/core/pooling.h"
#include "engine/core/status.h"

namespace sluice {

namespace worker::v1 {
class PoolingInfo;
class PoolingParams;
}  // namespace worker::v1

void encode(const PoolingParams& from, worker::v1::PoolingParams& to);
PoolingParams decode(const worker::v1::PoolingParams& from);

void encode(const PoolingInfo& from, worker::v1::PoolingInfo& to);
// kInvalidArgument: a kind that is not known.
Expected<PoolingInfo> decode(const worker::v1::PoolingInfo& from);

}  // namespace sluice

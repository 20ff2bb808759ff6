// SPDX-License-Identifier: Apache-2.0
// KV between GPUs of two workers over NCCL's point-to-point transfers (transport_device.h), with
// connections over TCP. NCCL opens ports of its own, whose traffic is neither authenticated nor
// encrypted.
#pragma once

#include <memory>

#include "kvcache/transport/kv_transport.h"

namespace sluice {

// Makes the transport; errors are those of make_kv_transport().
Expected<std::unique_ptr<KvTransport>> make_nccl_transport(KvTransportOptions options);

}  // namespace sluice

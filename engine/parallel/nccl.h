// SPDX-License-Identifier: Apache-2.0
// Communicators between GPU ranks over NCCL, whose library is opened at run time if present. They
// only gather: NCCL's sums add in an order that depends on the message. No run on two GPUs has
// tested them; tests run the host side against a library with the same interface, and multi-device
// engines on the GPU shim use other Communicators.
#pragma once

#include <string>

#include "engine/core/status.h"
#include "engine/parallel/parallel.h"
#include "kernels/nccl_library.h"

namespace sluice {

// Connects GPUs of this process, which fail together: by fail() of any of them, by a failing call,
// or by an error that NCCL's own threads notice, polled ten times a second. Either all connect or
// none. kUnavailable names the missing library or function.
//
// all_gather() returns when every rank has called it, though the data may arrive later.
//
// fail() never blocks: other threads abort what the ranks have on their streams. An all_gather()
// that the library itself blocks, as the first may until every rank has joined, is aborted when the
// library returns. Recorded work must be destroyed before the destructor of a failed rank.
Expected<ConnectRanks> open_nccl(const std::string& library = kernels::kNcclLibrary);

}  // namespace sluice

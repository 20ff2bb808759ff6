// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs: Communicators over NCCL, whose library is opened at run time where there is one.
// They gather only: NCCL's own sums add in an order that depends on the message. No two GPUs have
// met by them; tests run their host side against a library with the same interface, and engines on
// several devices of the shim with other Communicators.
#pragma once

#include <string>

#include "engine/core/status.h"
#include "engine/parallel.h"
#include "kernels/nccl_library.h"

namespace sluice {

// Connects GPUs of this process, which fail together: fail() of one, an error of one's call, or one
// that NCCL notices on threads of its own, which is asked for ten times a second. Where one cannot
// be connected none is. kUnavailable: what is missing, the library or a function of it.
//
// all_gather() returns when every rank has called it, though the parts may come later.
//
// fail() never waits: on threads of their own it ends what the ranks have on their streams, but not
// a call of all_gather() that the library itself holds up, as it may the first until every rank has
// come: that one is aborted once the library lets go. What was recorded must be gone before the
// destructor of a rank that has failed.
Expected<ConnectRanks> open_nccl(const std::string& library = kernels::kNcclLibrary);

}  // namespace sluice

// SPDX-License-Identifier: Apache-2.0
// Rules for a launch that starts before those in front of it have ended (LaunchShape::overlaps).
// The shim runs launches one after another; marks tell what a GPU might have done too early. It
// reports global memory that a thread writes before ptx::wait_for_launches, or reads before it
// after an unfinished launch or copy wrote it (in files compiled with -fsanitize=thread; copies to
// shared memory everywhere), and a thread that ends without it: the launch behind would pass the
// one in front.
#pragma once

#include <cstdint>

#include "tests/support/simt/block.h"

namespace sluice::simt {

// Called in the order of a stream's work, by the thread that runs it. A launch that does not
// overlap begins after everything before it has ended. So does a Run, if the host has waited.
void begin_launch(bool overlaps);

// Notes bytes that a copy in the stream writes, by a launch that overlaps.
void note_copied(const void* to, int64_t bytes);

// Checks the running thread's access to global memory; pc: the place in the program.
void check_overlap(const void* p, int64_t bytes, bool is_write, const void* pc);

// Checks a read by an operation that was begun before wait_for_launches.
void check_early_read(const void* p, int64_t bytes, const void* pc);

// Returns false, with a report, if the thread may not end yet.
[[nodiscard]] bool may_end(const Thread& thread);

}  // namespace sluice::simt

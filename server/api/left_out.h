// SPDX-License-Identifier: Apache-2.0
// Names the keywords of a request's schemas that its grammar leaves out, as arguments are named
// that are left out. Called on the request's I/O thread, before its answer begins.
#pragma once

namespace sluice {

struct GenerationRequest;
class IgnoredArguments;

void note_left_out(const GenerationRequest& request, IgnoredArguments& ignored);

}  // namespace sluice

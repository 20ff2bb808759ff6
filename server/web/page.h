// SPDX-License-Identifier: Apache-2.0
// The page for people: one HTML file of this folder's pieces, embedded in the binary. The chat and
// the plots are at /, and /docs is the same file, whose script reads the path and shows
// /openapi.json.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

struct Page {
  std::string_view html;
  // Content-Security-Policy: only the page's own script and style by their hashes, requests to its
  // own origin only, no frame around it, no text that becomes markup.
  std::string policy;
};

// Returns the page; the first call computes the hashes. Any thread.
const Page& web_page();

}  // namespace sluice

// SPDX-License-Identifier: Apache-2.0
// The page for people: one HTML file of this folder's pieces, in the binary. The chat and the plots
// are at /, and /docs is the same file, whose script reads the path and shows /openapi.json.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

struct Page {
  std::string_view html;
  // Content-Security-Policy: the page's own script and style by their hashes and no other, requests
  // to its own origin alone, no frame around it, no text that becomes markup.
  std::string policy;
};

// Any thread; the hashes are computed by the first call.
const Page& web_page();

}  // namespace sluice

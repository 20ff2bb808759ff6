// SPDX-License-Identifier: Apache-2.0
#include "server/web/page.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/tokenizer/text/base64.h"
#include "server/front/front_end.h"
#include "server/http/api_errors.h"
#include "server/keys/digest.h"

// The pieces in the order of the page, with labels around the text that the policy hashes.
asm(R"(
  .pushsection .rodata
sluice_page_begin:
  .incbin "head.html"
  .ascii "<style>"
sluice_page_style:
  .incbin "style.css"
sluice_page_style_end:
  .ascii "</style>"
  .incbin "body.html"
  .ascii "<script>"
sluice_page_script:
  .incbin "dom.js"
  .incbin "math.js"
  .incbin "markdown.js"
  .incbin "api.js"
  .incbin "store.js"
  .incbin "settings.js"
  .incbin "message.js"
  .incbin "chat.js"
  .incbin "plots.js"
  .incbin "operations.js"
  .incbin "examples.js"
  .incbin "docs.js"
  .incbin "start.js"
sluice_page_script_end:
  .ascii "</script></body></html>\n"
sluice_page_end:
  .byte 0
  .popsection
)");

extern "C" {
extern const char sluice_page_begin[];
extern const char sluice_page_style[];
extern const char sluice_page_style_end[];
extern const char sluice_page_script[];
extern const char sluice_page_script_end[];
extern const char sluice_page_end[];
}

namespace sluice {
namespace {

std::string_view between(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

// Returns a source of the policy: inline text with this hash.
std::string hash_source(std::string_view text) {
  const Digest digest = digest_of(text);
  const std::string_view bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
  return "'sha256-" + encode_base64(bytes) + "'";
}

Page make_page() {
  Page page;
  page.html = between(sluice_page_begin, sluice_page_end);
  page.policy = "default-src 'none'; script-src " +
                hash_source(between(sluice_page_script, sluice_page_script_end)) +
                "; style-src " +
                hash_source(between(sluice_page_style, sluice_page_style_end)) +
                "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
  return page;
}

}  // namespace

const Page& web_page() {
  static const Page page = make_page();
  return page;
}

void handle_page(FrontEnd& front_end, Exchange exchange) {
  if (!front_end.config.webui) {
    return front_end.respond(exchange, http_error_response(404, "There is nothing at this path."));
  }
  const Page& page = web_page();
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body = page.html;
  response.headers = {{"Content-Security-Policy", page.policy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cache-Control", "no-cache"}};
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice

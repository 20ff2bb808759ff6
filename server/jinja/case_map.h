// SPDX-License-Identifier: Apache-2.0
// Unicode's simple (one to one) case mappings.
#pragma once

namespace sluice::jinja {

char32_t to_upper(char32_t value);
char32_t to_lower(char32_t value);

}  // namespace sluice::jinja

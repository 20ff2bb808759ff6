// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/json_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/mapped_file.h"

namespace sluice {

tl::unexpected<Error> wrong_in_file(const std::string& file,
                                    const std::string& field,
                                    const std::string& found,
                                    const std::string& expected) {
  return make_error(ErrorCode::kUnsupported,
                    file + ": " + field + ": found " + found + ", expected " + expected);
}

Expected<nlohmann::json> read_json_file(const std::string& path) {
  using Json = nlohmann::json;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return Json();
  SLUICE_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxConfigBytes) {
    return wrong_in_file(path, "size", "more than 64 MiB", "less");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Json json(Json::value_t::discarded);
  if (!is_deeper_json(text, kMaxJsonLevels)) {
    json = Json::parse(json_without_nan(text, path), nullptr, /*allow_exceptions=*/false);
  }
  if (json.is_discarded()) return wrong_in_file(path, "file", "no JSON", "JSON");
  return json;
}

}  // namespace sluice

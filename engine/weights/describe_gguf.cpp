// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/describe_gguf.h"

#include <algorithm>
#include <string_view>

#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

constexpr size_t kShownElements = 6;

std::string pad(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string array_text(const GgufArray& array) {
  const bool is_string = array.element_type == GgufType::kString;
  const size_t shown = std::min(array.size(), kShownElements);
  std::vector<std::string_view> strings;
  if (is_string) strings = array.strings();
  std::string text = "[";
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    text += is_string ? in_quotes(strings[i]) : number_text(array.number(i));
  }
  if (array.size() > shown) text += ", ...";
  return text + "]";
}

struct ValueText {
  std::string operator()(uint64_t value) const { return std::to_string(value); }

  std::string operator()(int64_t value) const { return std::to_string(value); }

  std::string operator()(double value) const { return number_text(value); }

  std::string operator()(bool value) const { return value ? "true" : "false"; }

  std::string operator()(std::string_view value) const { return in_quotes(value); }

  std::string operator()(const GgufArray& value) const { return array_text(value); }
};

std::string type_text(const GgufValue& value) {
  const auto* array = std::get_if<GgufArray>(&value.value);
  if (array == nullptr) return std::string(to_string(value.type));
  return std::string(to_string(array->element_type)) + "[" + std::to_string(array->count) + "]";
}

// Names are printed without quotes, but never with bytes that move a terminal's cursor.
std::string plain(std::string_view name) {
  const std::string text = in_quotes(name);
  return text.ends_with('"') ? text.substr(1, text.size() - 2) : text.substr(1);
}

std::string shape_text(const GgufTensor& tensor) {
  std::string text = "[";
  for (uint32_t d = 0; d < tensor.num_dims; ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(tensor.dims[d]);
  }
  return text + "]";
}

bool is_later_layer(std::string_view name) {
  return name.starts_with("blk.") && !name.starts_with("blk.0.");
}

void append_metadata(const GgufFile& file, std::string& out) {
  out += "\nmetadata (" + std::to_string(file.metadata().size()) + ")\n";
  size_t width = 0;
  for (const auto& [key, value] : file.metadata()) width = std::max(width, plain(key).size());
  for (const auto& [key, value] : file.metadata()) {
    out += "  " + pad(plain(key), width) + "  " + pad(type_text(value), 14) + "  " +
           std::visit(ValueText{}, value.value) + "\n";
  }
}

void append_tensors(const GgufFile& file, bool all_tensors, std::string& out) {
  out += "\ntensors (" + std::to_string(file.tensors().size()) + ")\n";
  size_t width = 0;
  size_t num_hidden = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    if (!all_tensors && is_later_layer(tensor.name)) {
      ++num_hidden;
    } else {
      width = std::max(width, plain(tensor.name).size());
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!all_tensors && is_later_layer(tensor.name)) continue;
    out += "  " + pad(plain(tensor.name), width) + "  " +
           pad(std::string(format_info(tensor.format).name), 6) + "  " +
           pad(shape_text(tensor), 16) + "  " + std::to_string(tensor.data.size()) + "\n";
  }
  if (num_hidden > 0) out += "  ... " + std::to_string(num_hidden) + " more in later layers\n";
}

void append_totals(const GgufFile& file, std::string& out) {
  out += "\ntotals\n";
  for (const FormatInfo& info : format_table()) {
    size_t num_tensors = 0;
    uint64_t bytes = 0;
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.format != info.format) continue;
      ++num_tensors;
      bytes += tensor.data.size();
    }
    if (num_tensors == 0) continue;
    out += "  " + pad(std::string(info.name), 6) + "  " + std::to_string(num_tensors) +
           " tensors  " + std::to_string(bytes) + " bytes\n";
  }
}

}  // namespace

std::string describe_gguf(const GgufFile& file, bool all_tensors) {
  std::string out = file.path() + ": GGUF version " + std::to_string(file.version()) + ", " +
                    std::to_string(file.file_bytes()) + " bytes, alignment " +
                    std::to_string(file.alignment()) + "\n";
  append_metadata(file, out);
  append_tensors(file, all_tensors, out);
  append_totals(file, out);
  return out;
}

}  // namespace sluice

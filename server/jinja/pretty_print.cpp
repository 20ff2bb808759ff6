// SPDX-License-Identifier: Apache-2.0
// The pprint filter: Python's pprint in 80 columns. What does not fit on a line is broken at the
// items of its containers and at the words of its strings; dicts come sorted.
#include <algorithm>

#include "server/jinja/filters.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"
#include "server/jinja/print.h"

namespace sluice::jinja {
namespace {

constexpr int64_t kColumns = 80;

class PrettyPrinter {
 public:
  explicit PrettyPrinter(Runtime& runtime) : runtime_(runtime), out_(runtime) {}

  Expected<void> print(const Value& value, int64_t indent, int64_t allowance) {
    SLUICE_TRY_VOID(runtime_.charge(1));
    const Runtime::Depth depth(runtime_);
    if (depth.exceeded()) return runtime_.exhausted("values are nested too deeply");
    SLUICE_TRY(const Text line, one_line(value));
    if (width(line) <= kColumns - indent - allowance) {
      out_.append(line);
      return {};
    }
    if (value.is(Kind::kDict)) return print_dict(value.as<Dict>(), indent, allowance);
    if (value.is(Kind::kString)) return print_string(value.text(), indent, allowance);
    if (value.is(Kind::kSequence)) {
      const Sequence& sequence = value.as<Sequence>();
      if (sequence.kind == SequenceKind::kList) {
        return print_items(sequence, "[", "]", indent, allowance);
      }
      if (sequence.kind == SequenceKind::kTuple) {
        return print_items(
            sequence, "(", sequence.items.size() == 1 ? ",)" : ")", indent, allowance);
      }
    }
    out_.append(line);
    return {};
  }

  Result finish() { return out_.finish(); }

 private:
  static int64_t width(const Text& text) {
    return static_cast<int64_t>(count_characters(text.view()));
  }

  void newline(int64_t indent) {
    out_.append("\n", Origin::kTemplate);
    out_.fill(" ", Origin::kTemplate, indent);
  }

  // The keys of a dict in their order; those that do not compare go by their type's name.
  Expected<std::vector<size_t>> sorted(const Dict& dict) {
    std::vector<Value> keys;
    bool alike = true;
    for (const auto& [key, value] : dict.entries) {
      keys.push_back(key);
      alike = alike && (key.number() ? keys[0].number() : key.is(keys[0].kind()));
    }
    if (!alike) return runtime_.fail("pprint cannot sort keys of several types");
    return stable_order(runtime_, keys, /*descending=*/false);
  }

  // repr() with sorted dicts.
  Expected<Text> one_line(const Value& value) {
    TextBuilder line(runtime_);
    SLUICE_TRY_VOID(append_line(value, line));
    return line.take();
  }

  Expected<void> append_line(const Value& value, TextBuilder& line) {
    SLUICE_TRY_VOID(runtime_.charge(1));
    const Runtime::Depth depth(runtime_);
    if (depth.exceeded()) return runtime_.exhausted("values are nested too deeply");
    if (value.is(Kind::kDict)) {
      const Dict& dict = value.as<Dict>();
      SLUICE_TRY(const std::vector<size_t> keys, sorted(dict));
      line.append("{", dict.origin);
      for (const size_t at : keys) {
        if (at != keys.front()) line.append(", ", dict.origin);
        SLUICE_TRY_VOID(append_line(dict.entries[at].first, line));
        line.append(": ", dict.origin);
        SLUICE_TRY_VOID(append_line(dict.entries[at].second, line));
      }
      line.append("}", dict.origin);
      return {};
    }
    const bool list = value.is(Kind::kSequence) && value.as<Sequence>().kind == SequenceKind::kList;
    const bool tuple =
        value.is(Kind::kSequence) && value.as<Sequence>().kind == SequenceKind::kTuple;
    if (!list && !tuple) return append_repr(runtime_, value, line);
    const Sequence& sequence = value.as<Sequence>();
    line.append(list ? "[" : "(", sequence.origin);
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) line.append(", ", sequence.origin);
      SLUICE_TRY_VOID(append_line(sequence.items[i], line));
    }
    line.append(list ? "]" : sequence.items.size() == 1 ? ",)" : ")", sequence.origin);
    return {};
  }

  Expected<void> print_dict(const Dict& dict, int64_t indent, int64_t allowance) {
    SLUICE_TRY(const std::vector<size_t> keys, sorted(dict));
    out_.append("{", dict.origin);
    for (size_t i = 0; i < keys.size() && !out_.overflowed(); ++i) {
      const auto& [key, value] = dict.entries[keys[i]];
      if (i > 0) {
        out_.append(",", dict.origin);
        newline(indent + 1);
      }
      SLUICE_TRY(const Text name, one_line(key));
      out_.append(name);
      out_.append(": ", dict.origin);
      SLUICE_TRY_VOID(
          print(value, indent + 1 + width(name) + 2, i + 1 == keys.size() ? allowance + 1 : 1));
    }
    out_.append("}", dict.origin);
    return {};
  }

  Expected<void> print_items(const Sequence& sequence,
                             std::string_view open,
                             std::string_view close,
                             int64_t indent,
                             int64_t allowance) {
    out_.append(open, sequence.origin);
    for (size_t i = 0; i < sequence.items.size() && !out_.overflowed(); ++i) {
      if (i > 0) {
        out_.append(",", sequence.origin);
        newline(indent + 1);
      }
      const bool last = i + 1 == sequence.items.size();
      const auto closing = static_cast<int64_t>(close.size());
      SLUICE_TRY_VOID(print(sequence.items[i], indent + 1, last ? allowance + closing : 1));
    }
    out_.append(close, sequence.origin);
    return {};
  }

  // Literals next to each other, each as many words as fit.
  Expected<void> print_string(const Text& text, int64_t indent, int64_t allowance) {
    const bool outermost = out_.size() == 0;
    if (outermost) {
      ++indent;
      ++allowance;
    }
    std::vector<Text> pieces;
    SLUICE_TRY_VOID(string_pieces(text, indent, allowance, pieces));
    const bool parentheses = outermost && pieces.size() > 1;
    if (parentheses) out_.append("(", Origin::kTemplate);
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0) newline(indent);
      out_.append(pieces[i]);
    }
    if (parentheses) out_.append(")", Origin::kTemplate);
    return {};
  }

  Expected<Text> quoted(const Text& text) {
    SLUICE_TRY(const Value value, runtime_.text(text));
    return one_line(value);
  }

  Expected<void> string_pieces(const Text& text,
                               int64_t indent,
                               int64_t allowance,
                               std::vector<Text>& pieces) {
    const std::string_view view = text.view();
    for (size_t pos = 0; pos < view.size();) {
      const size_t end = find_line_break(view, pos).end;
      const bool last_line = end == view.size();
      const Text line = text.substr(pos, end);
      pos = end;
      SLUICE_TRY(Text whole, quoted(line));
      int64_t room = kColumns - indent - (last_line ? allowance : 0);
      if (width(whole) <= room) {
        pieces.push_back(std::move(whole));
        continue;
      }
      SLUICE_TRY_VOID(words_of(line, last_line, indent, allowance, pieces));
    }
    return {};
  }

  Expected<void> words_of(const Text& line,
                          bool last_line,
                          int64_t indent,
                          int64_t allowance,
                          std::vector<Text>& pieces) {
    const std::string_view view = line.view();
    size_t start = 0;   // of the literal being filled
    size_t filled = 0;  // its end so far
    for (size_t pos = 0; pos < view.size();) {
      // A word with the white space behind it.
      size_t end = pos;
      while (end < view.size() && !is_space(decode_at(view, end).value)) {
        end += decode_at(view, end).size;
      }
      end = skip_space(view, end);
      const int64_t room = kColumns - indent - (end == view.size() && last_line ? allowance : 0);
      SLUICE_TRY(const Text candidate, quoted(line.substr(start, end)));
      if (width(candidate) > room && filled > start) {
        SLUICE_TRY(Text full, quoted(line.substr(start, filled)));
        pieces.push_back(std::move(full));
        start = filled;
      }
      filled = end;
      pos = end;
    }
    if (filled > start) {
      SLUICE_TRY(Text rest, quoted(line.substr(start, filled)));
      pieces.push_back(std::move(rest));
    }
    return {};
  }

  Runtime& runtime_;
  TextBuilder out_;
};

}  // namespace

Result pretty_print(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "pprint", args, {}).map([](const Bound&) {}));
  PrettyPrinter printer(runtime);
  SLUICE_TRY_VOID(printer.print(self, 0, 0));
  return printer.finish();
}

}  // namespace sluice::jinja

// SPDX-License-Identifier: Apache-2.0
#include "server/tools/call_pass.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"

namespace sluice {

CallPass::Reader CallPass::first_reader(const CallFamily& family, Role role) {
  return std::visit(
      [role]<typename Form>(const Form& form) -> Reader {
        if constexpr (requires { typename Form::Reader; }) {
          return typename Form::Reader(role, form);
        } else {
          CHECK(false);  // read by OutputState
        }
      },
      family.mechanism);
}

CallPass::CallPass(const CallFamily& family, const Start& start)
    : start_(start), reader_(first_reader(family, start.role)), tried_(start.marker) {
  start_.marker = {};
}

Roles CallPass::live() const {
  return std::visit([](const auto& reader) { return reader.live(); }, reader_);
}

ValueState CallPass::value_state(const PieceWriter& out) const {
  if (!out.call_is_open()) return {};
  return std::visit([](const auto& reader) { return reader.value_state(); }, reader_);
}

void CallPass::add_tried(Step step, std::u16string_view symbols, bool was_open) {
  const bool counts =
      step == Step::kGoOn || step == Step::kFail || (step == Step::kDone && start_.in_thought);
  if (was_open || !counts) return;
  const auto is_space = [](Symbol symbol) {
    return symbol < kFirstSpecial && is_json_space(static_cast<char>(symbol));
  };
  const bool is_marker = symbols.size() > 1 || (!symbols.empty() && symbols[0] >= kFirstSpecial);
  if (is_marker && had_call_ && std::ranges::all_of(tried_, is_space)) tried_.clear();
  for (const Symbol symbol : symbols) {
    if (symbol < kFirstSpecial || start_.in_thought || start_.keeps_specials) tried_ += symbol;
  }
}

CallPass::Verdict CallPass::take(Step step,
                                 std::u16string_view symbols,
                                 bool was_open,
                                 bool begins) {
  if (begins) {
    tried_.clear();
    had_call_ = true;
    start_.in_thought = false;
  } else {
    add_tried(step, symbols, was_open);
  }
  const size_t limit = start_.in_thought ? kMaxHeldSymbols : kMaxBufferedBytes;
  if (step == Step::kGoOn && tried_.size() > limit) step = Step::kFail;
  const bool is_none = start_.in_thought || (start_.is_bare && !had_call_);
  const auto over = is_none ? Verdict::Kind::kNoCall : Verdict::Kind::kOver;
  switch (step) {
    case Step::kGoOn:
      return {.begins = begins};
    case Step::kDone:
      return {.kind = over, .begins = begins};
    case Step::kDoneBefore:
      return {.kind = over, .reads_again = true, .begins = begins};
    case Step::kFail:
      return {.kind = Verdict::Kind::kNoCall, .begins = begins};
    case Step::kFailBefore:
      return {.kind = Verdict::Kind::kNoCall, .reads_again = true, .begins = begins};
    case Step::kJson:
      reader_ = JsonCall(Role::kCallBegin, JsonCalls{});
      break;
    case Step::kCode:
      reader_ = LiteralCall::code();
      break;
  }
  return {.reads_again = true};
}

template <typename Read>
CallPass::Verdict CallPass::with_reader(std::u16string_view symbols,
                                        CallContext& context,
                                        Read read) {
  const int32_t num_before = context.out.num_begun();
  const bool was_open = context.out.call_is_open();
  const Step step = std::visit(read, reader_);
  return take(step, symbols, was_open, context.out.num_begun() != num_before);
}

CallPass::Verdict CallPass::text(char c, CallContext& context) {
  const Symbol symbol = static_cast<uint8_t>(c);
  return with_reader({&symbol, 1}, context, [&](auto& reader) { return reader.text(c, context); });
}

CallPass::Verdict CallPass::marker(const OutputFormat::Marker& marker, CallContext& context) {
  return with_reader(
      marker.symbols, context, [&](auto& reader) { return reader.marker(marker.role, context); });
}

CallPass::Verdict CallPass::end(CallContext& context) {
  return with_reader({}, context, [&](auto& reader) { return reader.end(context); });
}

}  // namespace sluice

// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/parser.h"

#include <algorithm>
#include <utility>

#include "server/jinja/lexer.h"
#include "server/jinja/parser_impl.h"

namespace sluice::jinja {
namespace {

bool names_loop(const Target& target) {
  return target.name == "loop" || std::any_of(target.parts.begin(), target.parts.end(), names_loop);
}

}  // namespace

bool Parser::take_op(std::string_view text) {
  if (!is_op(text)) return false;
  next();
  return true;
}

bool Parser::take_name(std::string_view text) {
  if (!is_name(text)) return false;
  next();
  return true;
}

Expected<void> Parser::expect_op(std::string_view text) {
  if (!take_op(text)) {
    return error("expected '" + std::string(text) + "', found '" + current().text + "'");
  }
  return {};
}

Expected<void> Parser::expect_block_end() {
  if (!is(TokenKind::kBlockEnd)) return error_unexpected();
  next();
  return {};
}

Expected<std::string> Parser::expect_name() {
  if (!is(TokenKind::kName)) return error("expected a name, found '" + current().text + "'");
  std::string name = current().text;
  next();
  return name;
}

tl::unexpected<Error> Parser::error(const std::string& what) const {
  return make_error(ErrorCode::kInvalidArgument,
                    "template line " + std::to_string(current().line) + ": " + what);
}

tl::unexpected<Error> Parser::error_unexpected() const {
  if (is(TokenKind::kEnd)) return error("unexpected end of template");
  if (is(TokenKind::kBlockEnd) || is(TokenKind::kPrintEnd)) return error("unexpected end of tag");
  return error("unexpected '" + current().text + "'");
}

ExprPtr Parser::make_expr(ExprKind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = current().line;
  return expr;
}

std::unique_ptr<Stmt> Parser::make_stmt(StmtKind kind) const {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = current().line;
  return stmt;
}

Expected<Block> Parser::parse_template() {
  SLUICE_TRY(Block block, parse_block({}));
  if (!is(TokenKind::kEnd)) return error_unexpected();
  return block;
}

Expected<Block> Parser::parse_block(std::initializer_list<std::string_view> ends) {
  const Depth depth(*this);
  if (depth.exceeded()) return error("statements are nested too deeply");
  Block block;
  while (!is(TokenKind::kEnd)) {
    if (is(TokenKind::kData)) {
      auto stmt = make_stmt(StmtKind::kData);
      stmt->text = current().text;
      block.push_back(std::move(stmt));
      next();
    } else if (is(TokenKind::kPrintBegin)) {
      next();
      auto stmt = make_stmt(StmtKind::kPrint);
      SLUICE_TRY(ExprPtr expr,
                 parse_tuple(/*with_condition=*/true, /*explicit_parentheses=*/false));
      if (!is(TokenKind::kPrintEnd)) return error_unexpected();
      next();
      stmt->exprs.push_back(std::move(expr));
      block.push_back(std::move(stmt));
    } else {
      next();  // kBlockBegin
      if (is(TokenKind::kName) &&
          std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
        return block;
      }
      SLUICE_TRY(auto stmt, parse_statement());
      block.push_back(std::move(stmt));
    }
  }
  if (ends.size() > 0) {
    return error("unexpected end of template, '" + std::string(*(ends.end() - 1)) + "' is missing");
  }
  return block;
}

Expected<Block> Parser::parse_body(std::string_view end) {
  SLUICE_TRY_VOID(expect_block_end());
  SLUICE_TRY(Block block, parse_block({end}));
  next();
  SLUICE_TRY_VOID(expect_block_end());
  return block;
}

Parser::StmtResult Parser::parse_statement() {
  if (!is(TokenKind::kName)) return error_unexpected();
  const std::string name = current().text;
  next();
  if (name == "if") return parse_if();
  if (name == "for") return parse_for();
  if (name == "set") return parse_set();
  if (name == "with") return parse_with();
  if (name == "macro") return parse_macro();
  if (name == "call") return parse_call_block();
  if (name == "filter") return parse_filter_block();
  if (name == "generation") return parse_generation();
  if (name == "block") return parse_named_block();
  if (name == "include" || name == "import" || name == "from" || name == "extends") {
    return parse_load();
  }
  if (name == "break") return parse_loop_control(StmtKind::kBreak);
  if (name == "continue") return parse_loop_control(StmtKind::kContinue);
  return error("unknown tag '" + name + "'");
}

Parser::StmtResult Parser::parse_if() {
  auto stmt = make_stmt(StmtKind::kIf);
  ++soft_depth_;
  while (true) {
    SLUICE_TRY(ExprPtr guard,
               parse_tuple(/*with_condition=*/false, /*explicit_parentheses=*/false));
    SLUICE_TRY_VOID(expect_block_end());
    SLUICE_TRY(Block body, parse_block({"elif", "else", "endif"}));
    stmt->exprs.push_back(std::move(guard));
    stmt->blocks.push_back(std::move(body));
    if (take_name("elif")) continue;
    if (take_name("else")) {
      SLUICE_TRY(Block other, parse_body("endif"));
      stmt->blocks.push_back(std::move(other));
    } else {
      next();
      SLUICE_TRY_VOID(expect_block_end());
    }
    --soft_depth_;
    return stmt;
  }
}

Parser::StmtResult Parser::parse_for() {
  auto stmt = make_stmt(StmtKind::kFor);
  SLUICE_TRY(Target target, parse_target(/*with_attribute=*/false));
  if (names_loop(target)) return error("cannot assign to the special loop variable");
  stmt->targets.push_back(std::move(target));
  if (!take_name("in")) return error("expected 'in', found '" + current().text + "'");
  SLUICE_TRY(ExprPtr iterable,
             parse_tuple(/*with_condition=*/false, /*explicit_parentheses=*/false));
  ExprPtr filter;
  if (take_name("if")) {
    SLUICE_TRY(filter, parse_expression());
  }
  stmt->recursive = take_name("recursive");
  SLUICE_TRY_VOID(expect_block_end());
  const int64_t reads_before = reads_.loop;
  ++loop_depth_;
  SLUICE_TRY(Block body, parse_block({"else", "endfor"}));
  --loop_depth_;
  stmt->uses_loop = reads_.loop != reads_before || stmt->recursive;
  stmt->exprs.push_back(std::move(iterable));
  stmt->exprs.push_back(std::move(filter));
  stmt->blocks.push_back(std::move(body));
  Block other;
  if (take_name("else")) {
    SLUICE_TRY(other, parse_body("endfor"));
  } else {
    next();
    SLUICE_TRY_VOID(expect_block_end());
  }
  stmt->blocks.push_back(std::move(other));
  return stmt;
}

Parser::StmtResult Parser::parse_set() {
  auto stmt = make_stmt(StmtKind::kSet);
  SLUICE_TRY(Target target, parse_target(/*with_attribute=*/true));
  stmt->targets.push_back(std::move(target));
  if (is_op("=") && stmt->targets[0].parts.size() == 1) return error_unexpected();
  if (take_op("=")) {
    SLUICE_TRY(ExprPtr value, parse_tuple(/*with_condition=*/true, /*explicit_parentheses=*/false));
    stmt->exprs.push_back(std::move(value));
    SLUICE_TRY_VOID(expect_block_end());
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  if (!stmt->targets[0].parts.empty()) return error("a set block assigns to one name");
  ExprPtr filters;
  if (is_op("|")) {
    SLUICE_TRY(filters, parse_filter_chain(nullptr, /*start_inline=*/false));
  }
  stmt->exprs.push_back(std::move(filters));
  SLUICE_TRY(Block body, parse_body("endset"));
  stmt->blocks.push_back(std::move(body));
  return stmt;
}

Parser::StmtResult Parser::parse_with() {
  auto stmt = make_stmt(StmtKind::kWith);
  while (!is(TokenKind::kBlockEnd)) {
    if (!stmt->targets.empty()) SLUICE_TRY_VOID(expect_op(","));
    SLUICE_TRY(Target target, parse_target(/*with_attribute=*/false));
    SLUICE_TRY_VOID(expect_op("="));
    SLUICE_TRY(ExprPtr value, parse_expression());
    stmt->targets.push_back(std::move(target));
    stmt->exprs.push_back(std::move(value));
  }
  SLUICE_TRY(Block body, parse_body("endwith"));
  stmt->blocks.push_back(std::move(body));
  return stmt;
}

Expected<void> Parser::parse_signature(MacroDef& macro) {
  SLUICE_TRY_VOID(expect_op("("));
  while (!is_op(")")) {
    if (!macro.parameters.empty()) SLUICE_TRY_VOID(expect_op(","));
    SLUICE_TRY(std::string name, expect_name());
    if (std::find(macro.parameters.begin(), macro.parameters.end(), name) !=
        macro.parameters.end()) {
      return error("duplicate parameter '" + name + "'");
    }
    if (name == "caller" && !is_op("=")) {
      return error("the special 'caller' argument must be omitted or be given a default");
    }
    macro.parameters.push_back(std::move(name));
    if (take_op("=")) {
      SLUICE_TRY(ExprPtr value, parse_expression());
      macro.defaults.push_back(std::move(value));
    } else if (!macro.defaults.empty()) {
      return error("a parameter without default follows one with a default");
    }
  }
  next();
  return {};
}

Expected<void> Parser::parse_macro_body(MacroDef& macro, std::string_view end) {
  const Reads before = reads_;
  const int32_t loops = std::exchange(loop_depth_, 0);
  SLUICE_TRY(macro.body, parse_body(end));
  loop_depth_ = loops;
  const auto has = [&](std::string_view name) {
    return std::find(macro.parameters.begin(), macro.parameters.end(), name) !=
           macro.parameters.end();
  };
  macro.uses_caller = reads_.caller != before.caller && !has("caller");
  macro.uses_varargs = reads_.varargs != before.varargs && !has("varargs");
  macro.uses_kwargs = reads_.kwargs != before.kwargs && !has("kwargs");
  return {};
}

Parser::StmtResult Parser::parse_macro() {
  auto stmt = make_stmt(StmtKind::kMacro);
  stmt->macro = std::make_unique<MacroDef>();
  SLUICE_TRY(stmt->macro->name, expect_name());
  SLUICE_TRY_VOID(parse_signature(*stmt->macro));
  SLUICE_TRY_VOID(parse_macro_body(*stmt->macro, "endmacro"));
  return stmt;
}

Parser::StmtResult Parser::parse_call_block() {
  auto stmt = make_stmt(StmtKind::kCallBlock);
  stmt->macro = std::make_unique<MacroDef>();
  if (is_op("(")) SLUICE_TRY_VOID(parse_signature(*stmt->macro));
  SLUICE_TRY(ExprPtr call, parse_expression());
  if (call->kind != ExprKind::kCall) return error("expected a call");
  stmt->exprs.push_back(std::move(call));
  SLUICE_TRY_VOID(parse_macro_body(*stmt->macro, "endcall"));
  return stmt;
}

Parser::StmtResult Parser::parse_filter_block() {
  auto stmt = make_stmt(StmtKind::kFilterBlock);
  SLUICE_TRY(ExprPtr filters, parse_filter_chain(nullptr, /*start_inline=*/true));
  stmt->exprs.push_back(std::move(filters));
  SLUICE_TRY(Block body, parse_body("endfilter"));
  stmt->blocks.push_back(std::move(body));
  return stmt;
}

Parser::StmtResult Parser::parse_generation() {
  auto stmt = make_stmt(StmtKind::kScope);
  const int32_t loops = std::exchange(loop_depth_, 0);
  SLUICE_TRY(Block body, parse_body("endgeneration"));
  loop_depth_ = loops;
  stmt->blocks.push_back(std::move(body));
  return stmt;
}

Parser::StmtResult Parser::parse_named_block() {
  auto stmt = make_stmt(StmtKind::kNamedBlock);
  SLUICE_TRY(stmt->text, expect_name());
  if (std::find(block_names_.begin(), block_names_.end(), stmt->text) != block_names_.end()) {
    return error("block '" + stmt->text + "' defined twice");
  }
  block_names_.push_back(stmt->text);
  stmt->scoped = take_name("scoped");
  if (is_name("required")) {
    return error("Required block '" + stmt->text + "' not found");
  }
  // Names that a block reads do not concern the macro or loop around it, except that it sees the
  // loop.
  const Reads before = reads_;
  const int32_t loops = std::exchange(loop_depth_, 0);
  SLUICE_TRY_VOID(expect_block_end());
  SLUICE_TRY(Block body, parse_block({"endblock"}));
  reads_ = before;
  if (stmt->scoped) ++reads_.loop;
  next();
  take_name(stmt->text);
  SLUICE_TRY_VOID(expect_block_end());
  loop_depth_ = loops;
  stmt->blocks.push_back(std::move(body));
  return stmt;
}

// A chat template is alone: what loads another one fails when it is reached.
Parser::StmtResult Parser::parse_load() {
  auto stmt = make_stmt(StmtKind::kLoad);
  SLUICE_TRY(ExprPtr name, parse_expression());
  stmt->exprs.push_back(std::move(name));
  while (!is(TokenKind::kBlockEnd)) {
    if (!is(TokenKind::kName) && !is_op(",")) return error_unexpected();
    next();
  }
  next();
  return stmt;
}

Parser::StmtResult Parser::parse_loop_control(StmtKind kind) {
  if (loop_depth_ == 0) return error("break and continue belong in a loop");
  auto stmt = make_stmt(kind);
  SLUICE_TRY_VOID(expect_block_end());
  return stmt;
}

Expected<Target> Parser::parse_target_name(bool with_attribute) {
  Target target;
  if (take_op("(")) {
    SLUICE_TRY(target, parse_target(/*with_attribute=*/false));
    SLUICE_TRY_VOID(expect_op(")"));
    return target;
  }
  SLUICE_TRY(target.name, expect_name());
  for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
    if (target.name == constant) return error("cannot assign to '" + target.name + "'");
  }
  if (with_attribute && take_op(".")) {
    SLUICE_TRY(target.attribute, expect_name());
  }
  return target;
}

Expected<Target> Parser::parse_target(bool with_attribute) {
  const Depth depth(*this);
  if (depth.exceeded()) return error("assignment is nested too deeply");
  SLUICE_TRY(Target first, parse_target_name(with_attribute));
  if (!is_op(",")) return first;
  Target tuple;
  tuple.parts.push_back(std::move(first));
  while (take_op(",")) {
    if (!is(TokenKind::kName) && !is_op("(")) break;
    if (is_name("in")) break;
    SLUICE_TRY(Target part, parse_target_name(with_attribute));
    tuple.parts.push_back(std::move(part));
  }
  return tuple;
}

Expected<Block> parse(std::string_view source, int32_t max_depth) {
  SLUICE_TRY(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens), max_depth).parse_template();
}

}  // namespace sluice::jinja

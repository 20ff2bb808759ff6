// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>
#include <utility>

#include "server/jinja/filters.h"
#include "server/jinja/parser_impl.h"
#include "server/jinja/tests.h"

namespace sluice::jinja {
namespace {

struct OpName {
  std::string_view text;
  Op op;
};

constexpr std::array<OpName, 6> kCompareOps = {{{"==", Op::kEq},
                                                {"!=", Op::kNe},
                                                {"<", Op::kLt},
                                                {"<=", Op::kLe},
                                                {">", Op::kGt},
                                                {">=", Op::kGe}}};
constexpr std::array<OpName, 2> kSumOps = {{{"+", Op::kAdd}, {"-", Op::kSub}}};
constexpr std::array<OpName, 1> kPowerOps = {{{"**", Op::kPow}}};
constexpr std::array<OpName, 4> kProductOps = {
    {{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}}};

template <size_t N>
const OpName* find_op(const std::array<OpName, N>& ops, const Token& token) {
  if (token.kind != TokenKind::kOperator) return nullptr;
  for (const OpName& op : ops) {
    if (op.text == token.text) return &op;
  }
  return nullptr;
}

}  // namespace

Expr::~Expr() {
  std::vector<ExprPtr> pending;
  const auto collect = [&pending](Expr& expr) {
    const auto take = [&pending](ExprPtr& child) {
      if (child != nullptr) pending.push_back(std::move(child));
    };
    for (ExprPtr& child : expr.children) take(child);
    for (ExprPtr& argument : expr.arguments.positional) take(argument);
    for (auto& [name, argument] : expr.arguments.named) take(argument);
    take(expr.arguments.star);
    take(expr.arguments.double_star);
  };
  collect(*this);
  while (!pending.empty()) {
    const ExprPtr expr = std::move(pending.back());
    pending.pop_back();
    collect(*expr);
  }
}

Parser::ExprResult Parser::parse_expression() {
  const Depth depth(*this);
  if (depth.exceeded()) return error("expression is nested too deeply");
  return parse_condition();
}

Parser::ExprResult Parser::parse_condition() {
  ExprPtr root;
  SLUICE_TRY(ExprPtr first, parse_or());
  root = std::move(first);
  int32_t links = 0;
  while (is_name("if")) {
    SLUICE_TRY_VOID(count_link(links));
    ExprPtr node = make_expr(ExprKind::kCondition);
    next();
    ++soft_depth_;
    SLUICE_TRY(ExprPtr condition, parse_or());
    ExprPtr other;
    if (take_name("else")) {
      SLUICE_TRY(other, parse_expression());
    }
    --soft_depth_;
    node->children.push_back(std::move(root));
    node->children.push_back(std::move(condition));
    node->children.push_back(std::move(other));
    root = std::move(node);
  }
  return root;
}

template <typename Operand, typename Take>
Parser::ExprResult Parser::parse_level(ExprKind kind, const Operand& operand, const Take& take) {
  SLUICE_TRY(ExprPtr first, operand());
  ExprPtr node = make_expr(kind);
  node->children.push_back(std::move(first));
  while (take(*node)) {
    SLUICE_TRY(ExprPtr another, operand());
    node->children.push_back(std::move(another));
  }
  if (node->children.size() == 1) return std::move(node->children[0]);
  return node;
}

template <typename Ops>
bool Parser::take_op_of(const Ops& ops, Expr& node) {
  const OpName* const found = find_op(ops, current());
  if (found == nullptr) return false;
  node.ops.push_back(found->op);
  next();
  return true;
}

Parser::ExprResult Parser::parse_or() {
  return parse_level(
      ExprKind::kOr, [this] { return parse_and(); }, [this](Expr&) { return take_name("or"); });
}

Parser::ExprResult Parser::parse_and() {
  return parse_level(
      ExprKind::kAnd, [this] { return parse_not(); }, [this](Expr&) { return take_name("and"); });
}

Parser::ExprResult Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Depth depth(*this);
  if (depth.exceeded()) return error("expression is nested too deeply");
  ExprPtr node = make_expr(ExprKind::kNot);
  next();
  SLUICE_TRY(ExprPtr operand, parse_not());
  node->children.push_back(std::move(operand));
  return node;
}

Parser::ExprResult Parser::parse_compare() {
  const auto take = [this](Expr& node) {
    if (take_op_of(kCompareOps, node)) return true;
    const bool is_not_in =
        is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in";
    if (is_not_in) next();
    if (!take_name("in")) return false;
    node.ops.push_back(is_not_in ? Op::kNotIn : Op::kIn);
    return true;
  };
  return parse_level(
      ExprKind::kCompare, [this] { return parse_sum(); }, take);
}

Parser::ExprResult Parser::parse_sum() {
  return parse_level(
      ExprKind::kChain,
      [this] { return parse_concat(); },
      [this](Expr& node) { return take_op_of(kSumOps, node); });
}

Parser::ExprResult Parser::parse_concat() {
  return parse_level(
      ExprKind::kConcat,
      [this] { return parse_product(); },
      [this](Expr&) { return take_op("~"); });
}

Parser::ExprResult Parser::parse_product() {
  return parse_level(
      ExprKind::kChain,
      [this] { return parse_power(); },
      [this](Expr& node) { return take_op_of(kProductOps, node); });
}

Parser::ExprResult Parser::parse_power() {
  return parse_level(
      ExprKind::kChain,
      [this] { return parse_unary(/*with_filter=*/true); },
      [this](Expr& node) { return take_op_of(kPowerOps, node); });
}

Parser::ExprResult Parser::parse_unary(bool with_filter) {
  const Depth depth(*this);
  if (depth.exceeded()) return error("expression is nested too deeply");
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    node = make_expr(is_op("-") ? ExprKind::kNegative : ExprKind::kPositive);
    next();
    SLUICE_TRY(ExprPtr operand, parse_unary(/*with_filter=*/false));
    node->children.push_back(std::move(operand));
  } else {
    SLUICE_TRY(node, parse_primary());
  }
  SLUICE_TRY(node, parse_postfix(std::move(node)));
  if (!with_filter) return node;
  return parse_filters_and_tests(std::move(node));
}

Parser::ExprResult Parser::parse_number() {
  const Token& token = current();
  ExprPtr node = make_expr(token.kind == TokenKind::kFloat ? ExprKind::kFloat : ExprKind::kInteger);
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == TokenKind::kFloat) {
    std::from_chars(begin, end, node->real);
  } else {
    int base = 10;
    if (token.text.size() > 2 && token.text[0] == '0' && token.text[1] > '9') {
      base = token.text[1] == 'x' ? 16 : token.text[1] == 'o' ? 8 : 2;
      begin += 2;
    }
    const auto result = std::from_chars(begin, end, node->integer, base);
    if (result.ec != std::errc{} || result.ptr != end) {
      return error("integer '" + token.text + "' does not fit 64 bits");
    }
  }
  next();
  return node;
}

Parser::ExprResult Parser::parse_primary() {
  const Token& token = current();
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) return parse_number();
  if (token.kind == TokenKind::kString) {
    ExprPtr node = make_expr(ExprKind::kString);
    for (; is(TokenKind::kString); next()) node->text += current().text;
    return node;
  }
  if (token.kind == TokenKind::kName) {
    ExprPtr node = make_expr(ExprKind::kName);
    const std::string& name = token.text;
    if (name == "true" || name == "false" || name == "True" || name == "False") {
      node->kind = ExprKind::kBool;
      node->integer = name == "true" || name == "True" ? 1 : 0;
    } else if (name == "none" || name == "None") {
      node->kind = ExprKind::kNone;
    } else {
      node->text = name;
      reads_.loop += name == "loop" ? 1 : 0;
      reads_.caller += name == "caller" ? 1 : 0;
      reads_.varargs += name == "varargs" ? 1 : 0;
      reads_.kwargs += name == "kwargs" ? 1 : 0;
    }
    next();
    return node;
  }
  if (take_op("(")) {
    SLUICE_TRY(ExprPtr node, parse_tuple(/*with_condition=*/true, /*explicit_parentheses=*/true));
    SLUICE_TRY_VOID(expect_op(")"));
    return node;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  return error_unexpected();
}

bool Parser::tuple_ends() const {
  return is(TokenKind::kPrintEnd) || is(TokenKind::kBlockEnd) || is_op(")") || is_name("recursive");
}

Parser::ExprResult Parser::parse_tuple(bool with_condition, bool explicit_parentheses) {
  ExprPtr tuple = make_expr(ExprKind::kTuple);
  bool is_tuple = false;
  while (!tuple_ends()) {
    if (with_condition) {
      SLUICE_TRY(ExprPtr item, parse_expression());
      tuple->children.push_back(std::move(item));
    } else {
      SLUICE_TRY(ExprPtr item, parse_or());
      tuple->children.push_back(std::move(item));
    }
    if (!take_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return tuple;
  if (!tuple->children.empty()) return std::move(tuple->children[0]);
  if (!explicit_parentheses) return error_unexpected();
  return tuple;
}

Parser::ExprResult Parser::parse_list() {
  ExprPtr node = make_expr(ExprKind::kList);
  next();
  while (!is_op("]")) {
    if (!node->children.empty()) SLUICE_TRY_VOID(expect_op(","));
    if (is_op("]")) break;
    SLUICE_TRY(ExprPtr item, parse_expression());
    node->children.push_back(std::move(item));
  }
  next();
  return node;
}

Parser::ExprResult Parser::parse_dict() {
  ExprPtr node = make_expr(ExprKind::kDict);
  next();
  while (!is_op("}")) {
    if (!node->children.empty()) SLUICE_TRY_VOID(expect_op(","));
    if (is_op("}")) break;
    SLUICE_TRY(ExprPtr key, parse_expression());
    SLUICE_TRY_VOID(expect_op(":"));
    SLUICE_TRY(ExprPtr value, parse_expression());
    node->children.push_back(std::move(key));
    node->children.push_back(std::move(value));
  }
  next();
  return node;
}

Expected<void> Parser::count_link(int32_t& links) const {
  if (++links > kMaxChainLength) return error("expression is chained too long");
  return {};
}

Parser::ExprResult Parser::parse_postfix(ExprPtr base) {
  int32_t links = 0;
  while (is_op(".") || is_op("[") || is_op("(")) {
    SLUICE_TRY_VOID(count_link(links));
    if (is_op("(")) {
      ExprPtr call = make_expr(ExprKind::kCall);
      SLUICE_TRY(call->arguments, parse_arguments());
      call->children.push_back(std::move(base));
      base = std::move(call);
    } else if (is_op("[")) {
      SLUICE_TRY(base, parse_subscript(std::move(base)));
    } else {
      next();
      ExprPtr node = make_expr(ExprKind::kAttribute);
      node->children.push_back(std::move(base));
      if (is(TokenKind::kInteger)) {
        node->kind = ExprKind::kSubscript;
        SLUICE_TRY(ExprPtr index, parse_number());
        node->children.push_back(std::move(index));
      } else {
        SLUICE_TRY(node->text, expect_name());
      }
      base = std::move(node);
    }
  }
  return base;
}

Parser::ExprResult Parser::parse_filters_and_tests(ExprPtr base) {
  int32_t links = 0;
  while (true) {
    SLUICE_TRY_VOID(count_link(links));
    if (is_op("|")) {
      SLUICE_TRY(base, parse_filter_chain(std::move(base), /*start_inline=*/false));
    } else if (is_name("is")) {
      SLUICE_TRY(base, parse_test(std::move(base)));
    } else if (is_op("(")) {
      ExprPtr call = make_expr(ExprKind::kCall);
      SLUICE_TRY(call->arguments, parse_arguments());
      call->children.push_back(std::move(base));
      base = std::move(call);
    } else {
      return base;
    }
  }
}

Parser::ExprResult Parser::parse_subscript_part() {
  ExprPtr start;
  if (!is_op(":")) {
    SLUICE_TRY(start, parse_expression());
    if (!is_op(":")) return start;
  }
  ExprPtr slice = make_expr(ExprKind::kSlice);
  slice->children.push_back(std::move(start));
  next();
  for (int part = 1; part < 3; ++part) {
    ExprPtr value;
    if (!is_op(":") && !is_op("]") && !is_op(",")) {
      SLUICE_TRY(value, parse_expression());
    }
    slice->children.push_back(std::move(value));
    if (part == 1 && !take_op(":")) break;
  }
  slice->children.resize(3);
  return slice;
}

Parser::ExprResult Parser::parse_subscript(ExprPtr base) {
  ExprPtr node = make_expr(ExprKind::kSubscript);
  next();
  SLUICE_TRY(ExprPtr index, parse_subscript_part());
  if (is_op(",")) {
    ExprPtr tuple = make_expr(ExprKind::kTuple);
    tuple->children.push_back(std::move(index));
    while (take_op(",")) {
      SLUICE_TRY(ExprPtr part, parse_subscript_part());
      tuple->children.push_back(std::move(part));
    }
    index = std::move(tuple);
  }
  SLUICE_TRY_VOID(expect_op("]"));
  node->children.push_back(std::move(base));
  node->children.push_back(std::move(index));
  return node;
}

Parser::ExprResult Parser::parse_filter_chain(ExprPtr base, bool start_inline) {
  int32_t links = 0;
  while (start_inline || take_op("|")) {
    SLUICE_TRY_VOID(count_link(links));
    start_inline = false;
    ExprPtr node = make_expr(ExprKind::kFilter);
    SLUICE_TRY(node->text, expect_name());
    if (soft_depth_ == 0 && find_filter(node->text) == nullptr) {
      return error("No filter named '" + node->text + "'.");
    }
    if (is_op("(")) {
      SLUICE_TRY(node->arguments, parse_arguments());
    }
    node->children.push_back(std::move(base));
    base = std::move(node);
  }
  return base;
}

Parser::ExprResult Parser::parse_test(ExprPtr base) {
  ExprPtr node = make_expr(ExprKind::kTest);
  next();
  const bool negated = take_name("not");
  SLUICE_TRY(node->text, expect_name());
  if (soft_depth_ == 0 && find_test(node->text) == nullptr) {
    return error("No test named '" + node->text + "'.");
  }
  const bool is_word = is(TokenKind::kName);
  if (is_op("(")) {
    SLUICE_TRY(node->arguments, parse_arguments());
  } else if (is_name("is")) {
    return error("tests cannot be chained with 'is'");
  } else if ((is_word && !is_name("else") && !is_name("or") && !is_name("and")) ||
             is(TokenKind::kString) || is(TokenKind::kInteger) || is(TokenKind::kFloat) ||
             is_op("[") || is_op("{")) {
    SLUICE_TRY(ExprPtr argument, parse_primary());
    SLUICE_TRY(argument, parse_postfix(std::move(argument)));
    node->arguments.positional.push_back(std::move(argument));
  }
  node->children.push_back(std::move(base));
  if (!negated) return node;
  ExprPtr inverse = make_expr(ExprKind::kNot);
  inverse->children.push_back(std::move(node));
  return inverse;
}

Expected<Arguments> Parser::parse_arguments() {
  Arguments arguments;
  SLUICE_TRY_VOID(expect_op("("));
  bool first = true;
  while (!is_op(")")) {
    if (!first) {
      SLUICE_TRY_VOID(expect_op(","));
      if (is_op(")")) break;
    }
    first = false;
    if (is_op("*") || is_op("**")) {
      ExprPtr& slot = is_op("*") ? arguments.star : arguments.double_star;
      if (slot != nullptr || arguments.double_star != nullptr) return error("invalid call syntax");
      next();
      SLUICE_TRY(slot, parse_expression());
    } else if (is(TokenKind::kName) && ahead().kind == TokenKind::kOperator &&
               ahead().text == "=") {
      if (arguments.double_star != nullptr) return error("invalid call syntax");
      std::string name = current().text;
      next();
      next();
      SLUICE_TRY(ExprPtr value, parse_expression());
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!arguments.named.empty() || arguments.star != nullptr ||
          arguments.double_star != nullptr) {
        return error("invalid call syntax");
      }
      SLUICE_TRY(ExprPtr value, parse_expression());
      arguments.positional.push_back(std::move(value));
    }
  }
  next();
  return arguments;
}

}  // namespace sluice::jinja

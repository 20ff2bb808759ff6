// SPDX-License-Identifier: Apache-2.0
// The recursive-descent parser's state; statements are in parser.cpp, expressions in
// parser_expr.cpp.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "server/jinja/ast.h"
#include "server/jinja/lexer.h"

namespace sluice::jinja {

// Links in one chain of postfixes or filters: they nest to the left in the tree.
inline constexpr int32_t kMaxChainLength = 200;

class Parser {
 public:
  Parser(std::vector<Token> tokens, int32_t max_depth)
      : tokens_(std::move(tokens)), max_depth_(max_depth) {}

  Expected<Block> parse_template();

 private:
  using ExprResult = Expected<ExprPtr>;
  using StmtResult = Expected<std::unique_ptr<Stmt>>;

  // Counts one level of nesting while it lives.
  class Depth {
   public:
    explicit Depth(Parser& parser) : parser_(parser) { ++parser_.depth_; }

    ~Depth() { --parser_.depth_; }

    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

    [[nodiscard]] bool exceeded() const { return parser_.depth_ > parser_.max_depth_; }

   private:
    Parser& parser_;
  };

  // How often names with a meaning of their own were read so far.
  struct Reads {
    int64_t loop = 0;
    int64_t caller = 0;
    int64_t varargs = 0;
    int64_t kwargs = 0;
  };

  [[nodiscard]] const Token& current() const { return tokens_[pos_]; }

  [[nodiscard]] const Token& ahead() const {
    return tokens_[pos_ + 1 < tokens_.size() ? pos_ + 1 : pos_];
  }

  [[nodiscard]] bool is(TokenKind kind) const { return current().kind == kind; }

  [[nodiscard]] bool is_op(std::string_view text) const {
    return is(TokenKind::kOperator) && current().text == text;
  }

  [[nodiscard]] bool is_name(std::string_view text) const {
    return is(TokenKind::kName) && current().text == text;
  }

  void next() {
    if (pos_ + 1 < tokens_.size()) ++pos_;
  }

  bool take_op(std::string_view text);
  bool take_name(std::string_view text);
  Expected<void> expect_op(std::string_view text);
  Expected<void> expect_block_end();
  Expected<std::string> expect_name();
  [[nodiscard]] tl::unexpected<Error> error(const std::string& what) const;
  [[nodiscard]] tl::unexpected<Error> error_unexpected() const;
  [[nodiscard]] ExprPtr make_expr(ExprKind kind) const;
  [[nodiscard]] std::unique_ptr<Stmt> make_stmt(StmtKind kind) const;

  // Statements up to a block tag named by one of `ends`, which is left current.
  Expected<Block> parse_block(std::initializer_list<std::string_view> ends);
  // Parses a whole body, from the end of its begin tag to the end of its `end` tag.
  Expected<Block> parse_body(std::string_view end);
  StmtResult parse_statement();
  StmtResult parse_if();
  StmtResult parse_for();
  StmtResult parse_set();
  StmtResult parse_with();
  StmtResult parse_macro();
  StmtResult parse_call_block();
  StmtResult parse_filter_block();
  StmtResult parse_generation();
  StmtResult parse_named_block();
  StmtResult parse_load();
  StmtResult parse_loop_control(StmtKind kind);
  Expected<void> parse_signature(MacroDef& macro);
  Expected<void> parse_macro_body(MacroDef& macro, std::string_view end);
  Expected<Target> parse_target(bool with_attribute);
  Expected<Target> parse_target_name(bool with_attribute);

  ExprResult parse_expression();
  ExprResult parse_condition();
  // Parses the operands of one level. take(node) takes the level's next operator, if there is one,
  // and adds it to the node; a single operand is no node of this kind.
  template <typename Operand, typename Take>
  ExprResult parse_level(ExprKind kind, const Operand& operand, const Take& take);
  template <typename Ops>
  bool take_op_of(const Ops& ops, Expr& node);
  ExprResult parse_or();
  ExprResult parse_and();
  ExprResult parse_not();
  ExprResult parse_compare();
  ExprResult parse_sum();
  ExprResult parse_concat();
  ExprResult parse_product();
  ExprResult parse_power();
  ExprResult parse_unary(bool with_filter);
  ExprResult parse_primary();
  ExprResult parse_number();
  ExprResult parse_tuple(bool with_condition, bool explicit_parentheses);
  ExprResult parse_list();
  ExprResult parse_dict();
  ExprResult parse_postfix(ExprPtr base);
  ExprResult parse_filters_and_tests(ExprPtr base);
  ExprResult parse_subscript(ExprPtr base);
  ExprResult parse_subscript_part();
  // `start_inline`: the first filter's name has no pipe, as in a filter block.
  ExprResult parse_filter_chain(ExprPtr base, bool start_inline);
  ExprResult parse_test(ExprPtr base);
  Expected<Arguments> parse_arguments();
  [[nodiscard]] bool tuple_ends() const;
  Expected<void> count_link(int32_t& links) const;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int32_t depth_ = 0;
  int32_t max_depth_;
  int32_t loop_depth_ = 0;
  int32_t soft_depth_ = 0;  // inside if: an unknown filter is an error only when it is reached
  Reads reads_;
  std::vector<std::string> block_names_;
};

}  // namespace sluice::jinja

// SPDX-License-Identifier: Apache-2.0
// Compiling in processes of their own: hostile grammars end them and nothing else.
#include "engine/sampling/grammar/grammar_compiler.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/sampling/grammar/frames.h"
#include "tests/support/byte_grammar.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

std::shared_ptr<const GrammarSpec> spec_of(GrammarKind kind, std::string text) {
  auto spec = std::make_shared<GrammarSpec>();
  spec->kind = kind;
  spec->text = std::move(text);
  return spec;
}

template <typename Value>
GrammarCompiler::Options with(Value GrammarCompiler::Options::*member,
                              const std::type_identity_t<Value>& value) {
  GrammarCompiler::Options options;
  options.*member = value;
  return options;
}

class GrammarCompilerTest : public ::testing::Test {
 protected:
  std::unique_ptr<GrammarCompiler> make(GrammarCompiler::Options options) {
    return std::make_unique<GrammarCompiler>(testing::byte_vocabulary, options, [this] {
      const std::scoped_lock lock(mutex_);
      changed_.notify_all();
    });
  }

  Expected<std::shared_ptr<const Grammar>> wait(
      const Expected<std::shared_ptr<const PendingGrammar>>& pending) {
    if (!pending) return tl::unexpected(pending.error());
    std::unique_lock lock(mutex_);
    while (!(*pending)->is_ready()) changed_.wait_for(lock, std::chrono::milliseconds(20));
    return (*pending)->result();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
};

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// Forced calls of many families: the process that compiles looks whether any text is allowed.
TEST_F(GrammarCompilerTest, AnAnswerMayBeginWithAControlTokenThatIsNamed) {
  const auto compiler = make({});
  constexpr TokenId kMarker = 257;
  auto spec = std::make_shared<GrammarSpec>();
  spec->kind = GrammarKind::kStructuralTag;
  spec->text =
      R"({"type":"structural_tag","format":{"type":"sequence","elements":[)"
      R"({"type":"token","token":257},{"type":"const_string","value":"ab"}]}})";
  spec->control_tokens = {kMarker};
  const auto grammar = wait(compiler->request(spec, TenantId(1)));
  ASSERT_TRUE(grammar) << grammar.error().message;
  const auto matcher = (*grammar)->match();
  EXPECT_EQ(testing::allowed_tokens(*matcher), std::vector<TokenId>{kMarker});
  EXPECT_TRUE(matcher->accept(kMarker) && testing::accepts_prefix(*matcher, "ab"));
}

TEST_F(GrammarCompilerTest, OneCompileForAllWhoAskForTheSame) {
  const auto compiler = make({});
  const auto spec = spec_of(GrammarKind::kRegex, "[a-c]{2,5}");
  const auto first = compiler->request(spec, TenantId(1));
  const auto second = compiler->request(spec, TenantId(1));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
  const auto grammar = wait(first);
  ASSERT_TRUE(grammar) << grammar.error().message;
  EXPECT_TRUE(testing::accepts(**grammar, "abc"));
  EXPECT_FALSE(testing::accepts(**grammar, "abd"));
  EXPECT_EQ(*compiler->request(spec, TenantId(1)), *first);
  // Another tenant waits as if no other had asked before.
  const auto other = compiler->request(spec, TenantId(2));
  EXPECT_NE(*other, *first);
  EXPECT_TRUE(wait(other));
  EXPECT_EQ(compiler->counters().num_misses, 2U);
  EXPECT_EQ(compiler->counters().num_hits, 2U);
}

TEST_F(GrammarCompilerTest, TheLeastRecentlyUsedGoesFirst) {
  const auto compiler = make(with(&GrammarCompiler::Options::cache_bytes, int64_t{0}));
  const auto spec = spec_of(GrammarKind::kRegex, "a+");
  const auto first = compiler->request(spec, TenantId(1));
  const auto grammar = wait(first);
  ASSERT_TRUE(grammar);
  EXPECT_TRUE(testing::accepts(**grammar, "aa"));  // who has it keeps it
  EXPECT_EQ(compiler->counters().cached_bytes, 0);
  EXPECT_NE(*compiler->request(spec, TenantId(1)), *first);
}

TEST_F(GrammarCompilerTest, TooManyThatWaitAreRefused) {
  const auto compiler = make(with(&GrammarCompiler::Options::max_waiting, 1));
  bool is_refused = false;
  for (int i = 0; i < 50 && !is_refused; ++i) {
    const auto pending =
        compiler->request(spec_of(GrammarKind::kRegex, "b" + repeated("a", i)), TenantId(1));
    is_refused = !pending;
    EXPECT_TRUE(pending || pending.error().code == ErrorCode::kResourceExhausted);
  }
  EXPECT_TRUE(is_refused);
}

// Each of them has taken a server of others down, or kept it busy.
// Takes some tenths of a second: each rule has the next one twice.
std::string doubling_rules() {
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < 60; ++i) {
    const std::string next = " r" + std::to_string(i + 1);
    rules += "r" + std::to_string(i) + " ::=" + next + next + " | \"a\"" + next + "\n";
  }
  return rules + "r60 ::= \"a\"\n";
}

TEST_F(GrammarCompilerTest, Museum) {
  GrammarCompiler::Options options;
  options.compile.wall_s = 60;
  options.compile.cpu_s = 1;
  options.compile.memory_bytes = int64_t{256} << 20;
  const auto compiler = make(options);
  std::string values;
  for (int i = 0; i < 200000; ++i) values += (i > 0 ? ",\"v" : "\"v") + std::to_string(i) + "\"";
  const std::vector<std::shared_ptr<const GrammarSpec>> museum = {
      spec_of(GrammarKind::kEbnf,
              "root ::= " + repeated("(", 30000) + "\"a\"" + repeated(")", 30000)),
      spec_of(GrammarKind::kRegex, repeated("(", 8000) + "a" + repeated(")", 8000)),
      spec_of(GrammarKind::kRegex, repeated("(a?){50}", 40) + "{1000}"),
      spec_of(GrammarKind::kRegex, "((((a{1,1000}){1,1000}){1,1000}){1,1000})"),
      spec_of(GrammarKind::kEbnf, "root ::= root"),
      spec_of(GrammarKind::kEbnf, "root ::= root root | root \"a\" | \"\""),
      spec_of(GrammarKind::kEbnf, doubling_rules()),
      spec_of(GrammarKind::kEbnf, "root ::= ((\"a\"{1,100000}){1,100000}){1,100000}"),
      spec_of(GrammarKind::kLark, "start: start start | start"),
      spec_of(GrammarKind::kJsonSchema, R"({"enum":[)" + values + "]}"),
      spec_of(GrammarKind::kJsonSchema,
              repeated(R"({"items":)", 20000) + "{}" + repeated("}", 20000)),
      spec_of(GrammarKind::kJsonSchema, R"({"$ref":"#"})"),
      spec_of(GrammarKind::kJsonSchema, R"({"allOf":[{"$ref":"#"},{"$ref":"#/allOf/0"}]})"),
      spec_of(GrammarKind::kStructuralTag,
              R"({"type":"structural_tag","format":)" +
                  repeated(R"({"type":"sequence","elements":[)", 5000) + repeated("]}", 5000) +
                  "}"),
  };
  for (const auto& spec : museum) {
    const Clock::time_point begun = Clock::now();
    const auto grammar = wait(compiler->request(spec, TenantId(1)));
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    EXPECT_LT(seconds, 62) << spec->text.substr(0, 60);
    std::cout << spec->text.substr(0, 40) << ": " << seconds << " s, "
              << (grammar ? "compiled" : grammar.error().message) << "\n";
    if (grammar) continue;
    EXPECT_TRUE(grammar.error().code == ErrorCode::kInvalidArgument ||
                grammar.error().code == ErrorCode::kUnsupported)
        << grammar.error().message;
  }
  const auto next = wait(compiler->request(spec_of(GrammarKind::kRegex, "ok"), TenantId(1)));
  ASSERT_TRUE(next) << next.error().message;
}

// A grammar of someone else is compiled beside one that takes all of its time.
TEST_F(GrammarCompilerTest, NeighboursAreUnharmed) {
  GrammarCompiler::Options options;
  options.compile.wall_s = 2;
  options.compile.cpu_s = 2;
  const auto compiler = make(options);
  ASSERT_TRUE(wait(compiler->request(spec_of(GrammarKind::kRegex, "warm"), TenantId(2))));
  const auto slow = compiler->request(
      spec_of(GrammarKind::kRegex, "((((a{1,1000}){1,1000}){1,1000}){1,1000})"), TenantId(1));
  ASSERT_TRUE(slow);
  const auto neighbour =
      wait(compiler->request(spec_of(GrammarKind::kRegex, "quick"), TenantId(2)));
  EXPECT_TRUE(neighbour);
  wait(slow);
}

std::vector<pid_t> children(pid_t of) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat");
    std::string line;
    if (!std::getline(stat, line)) continue;
    std::string state;
    pid_t parent = 0;
    std::istringstream(line.substr(line.rfind(')') + 1)) >> state >> parent;
    if (parent == of) found.push_back(std::stoi(line));
  }
  return found;
}

// Processes with a grammar each, of all workers of this process.
std::vector<pid_t> compiling() {
  std::vector<pid_t> found;
  for (const pid_t worker : children(getpid())) {
    for (const pid_t pid : children(worker)) found.push_back(pid);
  }
  return found;
}

// A process with a grammar that takes long falls behind the threads that compute, which are 5
// levels behind the others.
TEST_F(GrammarCompilerTest, LongCompilationsFallBehindWhatComputes) {
  GrammarCompiler::Options options;
  options.compile.wall_s = 60;
  const auto compiler = make(options);
  const int own = getpriority(PRIO_PROCESS, 0);
  const auto slow = compiler->request(spec_of(GrammarKind::kEbnf, doubling_rules()), TenantId(1));
  ASSERT_TRUE(slow);
  int last = own;
  while (!(*slow)->is_ready()) {
    for (const pid_t pid : compiling()) {
      last = std::max(last, getpriority(PRIO_PROCESS, static_cast<id_t>(pid)));
    }
  }
  EXPECT_GT(last, std::min(own + 5, 18)) << own;
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
}

// A process that the machine gives no time is not taken for a grammar that needs much of it, and no
// such answer is remembered.
TEST_F(GrammarCompilerTest, ABusyMachineMakesNoGrammarTooComplex) {
  GrammarCompiler::Options options;
  options.compile.wall_s = 1;
  options.compile.cpu_s = 60;
  const auto compiler = make(options);
  const auto slow = compiler->request(spec_of(GrammarKind::kEbnf, doubling_rules()), TenantId(1));
  ASSERT_TRUE(slow);
  std::vector<pid_t> pids;
  while (pids.empty() && !(*slow)->is_ready()) pids = compiling();
  ASSERT_EQ(pids.size(), 1);
  ASSERT_EQ(kill(pids[0], SIGSTOP), 0);
  const auto grammar = wait(slow);
  ASSERT_FALSE(grammar);
  EXPECT_EQ(grammar.error().code, ErrorCode::kUnavailable) << grammar.error().message;
  EXPECT_EQ(compiler->counters().cached_bytes, 0);  // not remembered
}

// A process that is killed from outside says nothing of the grammar, which compiles the next time.
TEST_F(GrammarCompilerTest, AKilledProcessIsNoFaultOfTheGrammar) {
  const auto compiler = make({});
  const auto spec = spec_of(GrammarKind::kEbnf, doubling_rules());
  for (const int signal : {SIGKILL, SIGTERM}) {
    const auto slow = compiler->request(spec, TenantId(1));
    ASSERT_TRUE(slow);
    std::vector<pid_t> pids;
    while (pids.empty() && !(*slow)->is_ready()) pids = compiling();
    ASSERT_EQ(pids.size(), 1);
    ASSERT_EQ(kill(pids[0], signal), 0);
    const auto grammar = wait(slow);
    ASSERT_FALSE(grammar);
    EXPECT_EQ(grammar.error().code, ErrorCode::kUnavailable) << grammar.error().message;
    EXPECT_EQ(compiler->counters().cached_bytes, 0);  // not remembered
  }
}

// Where the system gives no thread, it is the request that fails.
TEST_F(GrammarCompilerTest, WithoutAThreadARequestIsRefused) {
  const auto compiler = make({});
  pthread_attr_t before;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  pthread_attr_t huge = before;
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 60), 0);  // that no address space has
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const auto refused = compiler->request(spec_of(GrammarKind::kRegex, "a"), TenantId(1));
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(wait(compiler->request(spec_of(GrammarKind::kRegex, "a"), TenantId(1))));
}

// The process for compiling begins with the engine's limits of that moment, and follows them.
TEST_F(GrammarCompilerTest, LimitsThatAreLiftedAreLiftedForTheProcess) {
  for (const auto what : {RLIMIT_NOFILE, RLIMIT_NPROC}) {
    const auto compiler = make({});
    rlimit before{};
    ASSERT_EQ(getrlimit(what, &before), 0);
    ASSERT_TRUE(wait(compiler->request(spec_of(GrammarKind::kRegex, "a"), TenantId(1))));
    const std::vector<pid_t> workers = children(getpid());
    ASSERT_EQ(workers.size(), 1);
    rlimit low = before;
    low.rlim_cur = 4;  // as if it had begun when there was little left
    ASSERT_EQ(prlimit(workers[0], what, &low, nullptr), 0);
    EXPECT_TRUE(wait(compiler->request(spec_of(GrammarKind::kRegex, "b"), TenantId(1)))) << what;
    rlimit now{};
    ASSERT_EQ(prlimit(workers[0], what, nullptr, &now), 0);
    EXPECT_EQ(now.rlim_cur, before.rlim_cur);
  }
}

TEST_F(GrammarCompilerTest, AGrammarWithoutATextIsRefused) {
  const auto compiler = make({});
  const auto grammar =
      wait(compiler->request(spec_of(GrammarKind::kEbnf, "root ::= root"), TenantId(1)));
  ASSERT_FALSE(grammar);
  EXPECT_EQ(grammar.error().message, "no text is allowed by the grammar");
}

TEST_F(GrammarCompilerTest, ADeepOneOfEndsInTime) {
  std::string schema = R"({"type":"string"})";
  for (int i = 0; i < 14; ++i) {
    const std::string n = std::to_string(i);
    schema = R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a)" + n + R"("},"v":)" +
             schema + R"(},"required":["k","v"]},{"type":"object","properties":{"k":{"const":"b)" +
             n + R"("},"w":{"type":"integer"}},"required":["k"]}]})";
  }
  const auto compiler = make({});
  const Clock::time_point begun = Clock::now();
  const auto grammar =
      wait(compiler->request(spec_of(GrammarKind::kJsonSchema, schema), TenantId(1)));
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(25));  // the wall limit is 30
  EXPECT_TRUE(grammar || grammar.error().code == ErrorCode::kInvalidArgument);
}

constexpr const char* kObject =
    R"({"type":"object","properties":{"name":{"type":"string"},"n":{"type":"integer"}}})";

// A grammar that is quickly made is not handed over.
TEST_F(GrammarCompilerTest, OnlyWhatIsNotSmallComesFromTheProcess) {
  CompileSetup setup{.vocabulary = testing::byte_vocabulary(), .grammar = {}, .limits = {}};
  for (const bool may_be_small : {true, false}) {
    if (!may_be_small) setup.limits.small_ms = 0;
    CompileWorker worker("/proc/self/exe", setup);
    const auto bytes = worker.compile(*spec_of(GrammarKind::kJsonSchema, kObject));
    ASSERT_TRUE(bytes) << bytes.error().message;
    EXPECT_EQ(bytes->empty(), may_be_small);
    EXPECT_FALSE(worker.compile(*spec_of(GrammarKind::kRegex, "(")));
  }
}

// Here or there, and whatever was compiled before it, a grammar is the same.
TEST_F(GrammarCompilerTest, AGrammarIsTheSameWhereverItWasCompiled) {
  GrammarCompiler::Options elsewhere;
  elsewhere.compile.small_ms = 0;
  const auto there = make(elsewhere);
  const auto here = make({});
  const std::vector<std::string> schemas = {
      kObject,
      R"({"type":"object","properties":{"name":{"type":"string"},"m":{"type":"number"}}})",
      R"({"type":"array","items":{"type":"object","properties":{"n":{"type":"integer"}}}})",
      R"({"type":"object","properties":{"name":{"enum":["a","ab"]},"x":{"type":"boolean"}}})"};
  for (const std::string& schema : schemas) {
    const auto spec = spec_of(GrammarKind::kJsonSchema, schema);
    const auto one = wait(there->request(spec, TenantId(1)));
    for (const TenantId tenant : {TenantId(1), TenantId(2)}) {
      const auto other = wait(here->request(spec, tenant));
      ASSERT_TRUE(one && other);
      const auto first = (*one)->match();
      const auto second = (*other)->match();
      std::mt19937 random(1);
      for (int i = 0; i < 300; ++i) {
        const std::vector<TokenId> allowed = testing::allowed_tokens(*first);
        ASSERT_EQ(allowed, testing::allowed_tokens(*second)) << schema;
        const TokenId token = allowed[random() % allowed.size()];
        if (token == testing::kByteEnd) break;
        ASSERT_TRUE(first->accept(token) && second->accept(token));
      }
    }
  }
}

TEST_F(GrammarCompilerTest, LongRepetitionsCompile) {
  const auto compiler = make({});
  const auto grammar = wait(compiler->request(
      spec_of(GrammarKind::kJsonSchema,
              R"({"type":"object","properties":{"text":{"type":"string","minLength":300}},)"
              R"("required":["text"],"additionalProperties":false})"),
      TenantId(1)));
  if (kMostCounted < 300) {
    ASSERT_FALSE(grammar);
    EXPECT_EQ(grammar.error().code, ErrorCode::kUnsupported);
    return;
  }
  ASSERT_TRUE(grammar) << grammar.error().message;
  EXPECT_TRUE(testing::accepts(**grammar, "{\"text\": \"" + std::string(300, 'a') + "\"}"));
  EXPECT_FALSE(testing::accepts(**grammar, "{\"text\": \"" + std::string(299, 'a') + "\"}"));
}

TEST_F(GrammarCompilerTest, AWorkerThatCannotStartIsAnErrorOfTheRequest) {
  const auto compiler = make(with(&GrammarCompiler::Options::program, "/nonexistent"));
  const auto grammar = wait(compiler->request(spec_of(GrammarKind::kRegex, "a"), TenantId(1)));
  ASSERT_FALSE(grammar);
  EXPECT_EQ(grammar.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(compiler->counters().cached_bytes, 0);  // not remembered
}

// Sends one frame as its reply and stays.
TEST_F(GrammarCompilerTest, AReplyThatCannotBeReadIsNoErrorOfTheGrammar) {
  const testing::TemporaryFolder folder;
  const std::string program = folder.at("worker");
  FieldWriter unknown;
  unknown.add(0);
  unknown.add(1000);
  unknown.add(std::string_view("an error of no kind"));
  for (const std::string& reply : {std::string(), std::string("cut"), unknown.bytes()}) {
    std::ofstream(folder.at("reply"), std::ios::binary)
        << std::string{static_cast<char>(reply.size()), 0, 0, 0, 0, 0, 0, 0} << reply;
    std::ofstream(program) << "#!/bin/sh\ncat " << folder.at("reply")
                           << " >&3\nexec cat <&3 >/dev/null\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    const auto compiler = make(with(&GrammarCompiler::Options::program, program));
    const auto grammar = wait(compiler->request(spec_of(GrammarKind::kRegex, "a"), TenantId(1)));
    ASSERT_FALSE(grammar);
    EXPECT_EQ(grammar.error().code, ErrorCode::kUnavailable) << grammar.error().message;
    EXPECT_EQ(compiler->counters().cached_bytes, 0);  // not remembered
  }
}

// A frame's length is what the other process says, before anything is allocated for it.
TEST(Frames, LongerOnesThanAskedForAreNotRead) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  ASSERT_TRUE(write_frame(pipes[1], "eleven byte", deadline));
  EXPECT_EQ(read_frame(pipes[0], 11, deadline), "eleven byte");
  ASSERT_TRUE(write_frame(pipes[1], "eleven byte", deadline));
  EXPECT_EQ(read_frame(pipes[0], 10, deadline), std::nullopt);
  close(pipes[0]);
  close(pipes[1]);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (sluice::is_compile_worker(argc, argv)) return sluice::run_compile_worker();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

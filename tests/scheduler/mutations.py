#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the simulator sees bugs: each of the chosen ones is put into scheduler or KV manager, one
at a time, and scheduler_sim_test has to fail. Needs a build folder with that test in it, and leaves
the sources as they are.

usage: mutations.py BUILD [WORD]    (only those whose description has WORD)
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST = "tests/scheduler/scheduler_sim_test"
STEPS = "100000"

# What the bug is, file, text that stands there once, what stands there instead; more pairs.
MUTATIONS = [
    ("a step may have more tokens than its budget", "scheduler/scheduler.cpp",
     "std::min(num_remaining, num_tokens_left());", "num_remaining;"),
    ("a request generates beyond max_tokens", "scheduler/scheduler.cpp",
     "if (!e.schedulable() || !e.decodes()) continue;",
     "if (e.draining() || !e.decodes()) continue;"),
    ("more room is believed in than was allocated", "scheduler/scheduler.cpp",
     "align_up(start + granted, kv.block_size()));",
     "align_up(start + granted + 1, kv.block_size()));"),
    ("blocks are cached before they are computed", "scheduler/scheduler.cpp",
     "kv.cache_blocks(r.id, r.tokens, std::min(r.num_computed_tokens, r.num_tokens()));",
     "kv.cache_blocks(r.id, r.tokens, r.num_tokens());"),
    ("an abort does not wait for the step in flight", "scheduler/scheduler.cpp",
     "    if (e.request.status == RequestStatus::kFinished) return false;\n",
     "    m.leave(index);\n    return true;\n"),
    ("a generated token costs its tenant more", "scheduler/scheduler.cpp",
     "waiting.charge(e.tenant_slot, kGeneratedCost);", "waiting.charge(e.tenant_slot, 3);"),
    ("a request that has ended keeps its blocks", "scheduler/scheduler.cpp",
     "  kv.free(r.id);\n  running.erase", "  running.erase"),
    ("prefills come before decodes", "scheduler/scheduler.cpp",
     "  m.schedule_decodes();\n  m.set_target();\n  m.schedule_prefills();",
     "  m.schedule_prefills();\n  m.schedule_decodes();"),
    ("a preempted request goes on where it was", "scheduler/preemption.cpp",
     "  e.request.num_computed_tokens = 0;\n  e.request.num_scheduled_tokens = 0;\n", ""),
    ("the oldest request may be preempted", "scheduler/preemption.cpp",
     "for (size_t i = position + 1; i < running.size(); ++i) {",
     "for (size_t i = 0; i < running.size(); ++i) {"),
    ("a victim in flight is preempted at once", "scheduler/preemption.cpp",
     "  if (e.request.num_in_flight_tokens > 0) {\n    e.preempt_pending = true;\n"
     "    ++num_draining;\n    return false;\n  }\n", ""),
    ("forced preemptions have no end", "scheduler/preemption.cpp",
     "if (e.draining() || e.request.num_generated() <= e.forced_at_generated) continue;",
     "if (e.draining()) continue;"),
    ("a prompt is free for its tenant", "scheduler/queues.cpp",
     "waiting.start(e.tenant_slot, e.key(), r.num_tokens() - num_found);",
     "waiting.start(e.tenant_slot, e.key(), 0);"),
    ("what was generated elsewhere counts as the prompt", "scheduler/scheduler.cpp",
     "static_cast<int64_t>(request.tokens.size()) - request.num_generated;",
     "static_cast<int64_t>(request.tokens.size());"),
    ("what was generated elsewhere is free for the tenant", "scheduler/queues.cpp",
     "r.num_tokens() - num_found);", "r.num_prompt_tokens - num_found);"),
    ("newcomers go before the preempted", "scheduler/queues.cpp",
     "if (!preempted.empty()) return preempted.first();",
     "if (!preempted.empty() && waiting.empty()) return preempted.first();"),
    ("a deadline passes by a millisecond", "scheduler/queues.cpp",
     "deadlines.first_key().deadline_ms <= now_ms", "deadlines.first_key().deadline_ms < now_ms"),
    ("who waits for a prefix waits for ever", "scheduler/queues.cpp",
     "    queue(index);\n    return true;\n", "    return false;\n"),
    ("a newcomer without room keeps the prefix it found", "scheduler/queues.cpp",
     "    kv.free(r.id);\n    if (affordable) {", "    if (affordable) {"),
    ("a tenant keeps the place it had before it was charged", "scheduler/fair_queue.cpp",
     "    if (due_.first_key().counter == top.counter) return top.queue.first();\n",
     "    return top.queue.first();\n"),
    ("idle time is worth nothing", "scheduler/fair_queue.cpp",
     "if (is_due(key)) served_ = std::max(served_, started.counter);",
     "served_ = std::max(served_, started.counter + num_tokens);"),
    ("a hit takes no reference", "kvcache/kv_cache_manager.cpp",
     "      group.pool.share(block);\n", ""),
    ("a hit leaves nothing to compute", "kvcache/kv_cache_manager.cpp",
     "tokens.first((tokens.size() - 1) / block_size * block_size)",
     "tokens.first(tokens.size() / block_size * block_size)"),
    ("a block that is not full becomes findable", "kvcache/kv_cache_manager.cpp",
     "    const int32_t num_full = num_computed_tokens / m.options.block_size;\n    while",
     "    const int32_t num_full = static_cast<int32_t>(std::min<int64_t>(ceil_div(num_computed_tokens, "
     "m.options.block_size), static_cast<int64_t>(tokens.size()) / m.options.block_size));\n    while"),
    ("a window lets go of a token too many", "kvcache/kv_cache_manager.cpp",
     "return std::max(0, num_computed - spec.window + 1) / tokens_per_entry;",
     "return std::max(0, num_computed - spec.window + 2) / tokens_per_entry;"),
    ("a prefix is not pinned", "kvcache/kv_cache_manager.cpp",
     "  m.index.pin(slot.cursor);\n", ""),
    ("an evicted block stays findable", "kvcache/kv_cache_manager.cpp",
     "    index.detach(tag, group);\n", ""),
    ("a state is taken from before its prefix's end", "kvcache/kv_cache_manager.cpp",
     "          usable = usable && present;\n", ""),
    ("a block in transfer is given away", "kvcache/block_pool.cpp",
     "  if (b.refcount != 0 || b.num_transfers != 0) return;\n  if (b.tag != kNoTag) {",
     "  if (b.refcount != 0) return;\n  if (b.tag != kNoTag) {"),
    ("what a copy in flight reads is given away", "kvcache/kv_cache_manager.cpp",
     "  for (const KvBlockCopy& copy : impl_->copies) begin_transfer(copy.group, copy.from);\n", "",
     "  for (const KvBlockCopy& copy : copies) end_transfer(copy.group, copy.from);\n", ""),
    ("a shared block is given away", "kvcache/block_pool.cpp",
     "  append_if_idle(block.value);\n}\n\nvoid BlockPool::set_tag",
     "  append(kFreeList, block.value);\n}\n\nvoid BlockPool::set_tag"),
    ("a reused block keeps its tag", "kvcache/block_pool.cpp",
     "  b.tag = kNoTag;\n  append(kFreeList, block);", "  append(kFreeList, block);"),
    ("extras make no difference", "kvcache/prefix_index.cpp",
     "  return XXH3_64bits_withSeed(token_ids.data(), token_ids.size_bytes(), seed);\n",
     "  if (!parent) seed = 0;\n"
     "  return XXH3_64bits_withSeed(token_ids.data(), token_ids.size_bytes(), seed);\n",
     "node.parent == parent && node.extras == extras &&", "node.parent == parent &&"),
    ("a copy goes the wrong way", "kvcache/kv_cache_manager.cpp",
     ".from = from, .to = kNullBlock});", ".from = kNullBlock, .to = from});",
     "copies[copies.size() - groups.size() + g].to = taken.block;",
     "copies[copies.size() - groups.size() + g].from = taken.block;"),
    ("what a copy brings counts a token too many", "kvcache/prefix_index.cpp",
     "const auto num_tokens = static_cast<int32_t>(end - own.begin());",
     "const auto num_tokens = std::min<int32_t>(limit, 1 + static_cast<int32_t>(end - own.begin()));"),
    ("blocks are copied where a state belongs to them", "kvcache/kv_cache_manager.cpp",
     "copies_blocks = copies_blocks && spec.kind != KvGroupKind::kState;", ""),
    ("the tail of a request is kept before it is computed", "scheduler/scheduler.cpp",
     "kv.cache_tail(r.id, r.tokens, std::min(r.num_computed_tokens, r.num_tokens()));",
     "kv.cache_tail(r.id, r.tokens, r.num_tokens());"),
    ("who waits for what is being brought back fails", "scheduler/scheduler.cpp",
     "output.scheduled.empty() && m.restoring.empty() && m.idle()",
     "output.scheduled.empty() && m.idle()"),
    ("prompts are half computed without a limit", "scheduler/queues.cpp",
     "  const int32_t least = may_be_partial() ? 1 : rest;\n", "  const int32_t least = 1;\n"),
    ("drafts outgrow the answer", "scheduler/drafts.cpp",
     "e.request.max_tokens - e.request.num_generated() - 1, num_rows_left()",
     "e.request.max_tokens - e.request.num_generated(), num_rows_left()"),
    ("drafts take more rows than there are", "scheduler/drafts.cpp",
     "options.max_num_seqs) - num_chosen_rows);", "options.max_num_seqs));"),
    ("drafts take more tokens than the step has", "scheduler/drafts.cpp",
     "std::min(num_tokens_left(),", "std::min(options.max_num_batched_tokens,"),
    ("drafts have no blocks", "scheduler/drafts.cpp",
     "    CHECK(kv.allocate_slots(row.id, row.end() + count));\n", ""),
    ("wrong drafts count as computed", "scheduler/scheduler.cpp",
     "r.num_computed_tokens += row.num_scheduled_tokens - num_wrong;",
     "r.num_computed_tokens += row.num_scheduled_tokens;"),
    ("wrong drafts stay scheduled", "scheduler/scheduler.cpp",
     "  r.num_scheduled_tokens -= num_wrong;\n", ""),
    ("wrong drafts are taken back twice", "scheduler/scheduler.cpp",
     "  r.num_scheduled_tokens -= num_wrong;\n", "  r.num_scheduled_tokens -= 2 * num_wrong;\n"),
    ("right drafts are not computed", "scheduler/scheduler.cpp",
     "const int32_t num_wrong = row.num_draft_tokens - num_right;",
     "const int32_t num_wrong = row.num_draft_tokens;"),
    ("right drafts are free for the tenant", "scheduler/scheduler.cpp",
     "  if (num_right > 0) waiting.charge(e.tenant_slot, num_right * kGeneratedCost);\n", ""),
    ("a request goes on behind drafts in flight", "scheduler/drafts.cpp",
     "  e.num_drafts_in_flight = count;\n", ""),
    ("drafts follow a token that is not chosen yet", "scheduler/drafts.cpp",
     "return row.end() == e.request.num_tokens() ? &row : nullptr;", "return &row;"),
    ("a request is given another one's drafts", "scheduler/drafts.cpp",
     "  e.offer = offer;\n", "  e.offer = 0;\n"),
    ("drafts of the step before are taken", "scheduler/scheduler.cpp",
     "  offers.clear();\n", ""),
    ("a request is brought back again and again", "scheduler/queues.cpp",
     "  e.was_restored = true;\n", ""),
]


def commands(build):
    """The compile command of each source, and the test's link command, as lists of words."""
    compiles = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        if source.is_relative_to(ROOT):
            compiles[str(source.relative_to(ROOT))] = entry["command"].split()
    listed = subprocess.run(["ninja", "-C", build, "-t", "commands", TEST], check=True,
                            capture_output=True, text=True).stdout.splitlines()
    words = listed[-1].split()
    return compiles, words[words.index("&&") + 1:len(words) - 2]


def replaced(path, pairs):
    text = (ROOT / path).read_text()
    for old, new in zip(pairs[::2], pairs[1::2]):
        if text.count(old) != 1:
            sys.exit(f"mutations.py: {path} has this {text.count(old)} times, not once:\n{old}")
        text = text.replace(old, new)
    return text


def set_output(words, path):
    words = list(words)
    words[words.index("-o") + 1] = str(path)
    return words


def is_caught(build, folder, compile_words, link_words, text):
    """How the mutant ends, or None when the simulator saw nothing."""
    source, code, program = folder / "mutant.cpp", folder / "mutant.o", folder / "mutant"
    source.write_text(text)
    words = set_output(compile_words, code)
    words[words.index("-c") + 1] = str(source)
    subprocess.run([*words, "-w"], cwd=build, check=True)
    # Before the archives: what is defined already is not taken from them.
    words = set_output(link_words, program)
    words.insert(words.index("-o"), str(code))
    subprocess.run(words, cwd=build, check=True)
    try:
        ended = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False,
                               env={**os.environ, "SLUICE_SIM_STEPS": STEPS})
    except subprocess.TimeoutExpired:
        return "hangs"
    if ended.returncode == 0:
        return None
    if ended.returncode < 0:
        return "crashes"
    found = re.search(r'"([a-z][^"]*)"', ended.stdout)
    return found[1] if found else "fails"



def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1]).resolve()
    word = sys.argv[2] if len(sys.argv) == 3 else ""
    subprocess.run(["ninja", "-C", build, TEST], check=True, stdout=subprocess.DEVNULL)
    compiles, link = commands(build)
    missed = 0
    chosen = [m for m in MUTATIONS if word in m[0]]
    texts = [replaced(path, pairs) for _, path, *pairs in chosen]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for (what, path, *_), text in zip(chosen, texts):
            end = is_caught(build, folder, compiles[path], link, text)
            missed += end is None
            print(f"{'MISSED' if end is None else 'caught'}: {what}: {end}", flush=True)
        # The judge itself: what is not changed passes.
        path = chosen[0][1]
        end = is_caught(build, folder, compiles[path], link, (ROOT / path).read_text())
        if end is not None:
            sys.exit(f"mutations.py: the code as it is fails: {end}")
    print(f"{len(chosen) - missed} of {len(chosen)} bugs are caught")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()

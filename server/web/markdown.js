// Markdown to elements. What is no markdown is text; links lead to http, https and mailto only;
// images are links, as nothing is loaded from elsewhere. Time is linear in the text: blocks of
// more than MAX_INLINE characters stay plain, and a mark looks for its end within MAX_SPAN.

const MAX_INLINE = 40000;
const MAX_SPAN = 2000;
const MAX_NESTING = 6;
const MAX_MATH_LINES = 200;
const PIECE = 4000; // characters of a text node of plain text: layout of one huge node is slow

function plainText(text) {
  if (text.length <= PIECE) return [document.createTextNode(text)];
  const nodes = [];
  for (let at = 0; at < text.length; at += PIECE) {
    nodes.push(el("span", null, text.slice(at, at + PIECE)));
  }
  return nodes;
}

function safeLink(target) {
  try {
    const url = new URL(target);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const linkTo = (href, ...children) =>
  el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);

// The end of `mark` behind `from`, or -1; not behind a space, as "2 * 3 * 4" is no emphasis.
function endOf(text, mark, from) {
  const window = text.slice(from, from + MAX_SPAN);
  for (let at = window.indexOf(mark); at >= 0; at = window.indexOf(mark, at + 1)) {
    if (at === 0 || /\s/.test(window[at - 1])) continue;
    if (mark.length === 1 && (window[at + 1] === mark || window[at - 1] === mark)) {
      at += 1;
      continue;
    }
    return from + at;
  }
  return -1;
}

const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];

// The element at `at` and where it ends, or null.
function inlineAt(text, at, depth) {
  const c = text[at];
  if (c === "$" || (c === "\\" && /[([]/.test(text[at + 1] || ""))) {
    const made = mathAt(text, at);
    if (made || c === "$") return made;
  }
  if (c === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] || ""))
    return [document.createTextNode(text[at + 1]), at + 2];
  if (c === "`") {
    const mark = /^`+/.exec(text.slice(at, at + 8))[0];
    const end = text.slice(at + mark.length, at + MAX_SPAN).indexOf(mark);
    if (end <= 0) return [document.createTextNode(mark), at + mark.length];
    const from = at + mark.length;
    return [
      el("code", null, text.slice(from, from + end).replace(/^ (.+) $/, "$1")),
      from + end + mark.length,
    ];
  }
  if (c === "[" || (c === "!" && text[at + 1] === "[")) {
    const match =
      /^!?\[((?:[^\[\]\\]|\\.){0,500})\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)?)>?(?:\s+"[^"]*")?\s*\)/.exec(
        text.slice(at, at + MAX_SPAN),
      );
    const href = match && safeLink(match[2]);
    if (!href) return null;
    const label = depth < MAX_NESTING ? inline(match[1], depth + 1) : [match[1]];
    return [linkTo(href, ...(match[1] ? label : [match[2]])), at + match[0].length];
  }
  if (c === "h" || c === "<") {
    if (at > 0 && /\w/.test(text[at - 1])) return null;
    const match = /^<?(https?:\/\/[^\s<>"`]+)>?/.exec(text.slice(at, at + MAX_SPAN));
    if (!match || (c === "<") !== match[0].endsWith(">")) return null;
    const shown = c === "<" ? match[1] : match[1].replace(/[).,;:!?'"*_]+$/, "");
    const href = safeLink(shown);
    return href ? [linkTo(href, shown), at + (c === "<" ? match[0].length : shown.length)] : null;
  }
  if (depth >= MAX_NESTING) return null;
  for (const [mark, tag] of MARKS) {
    if (!text.startsWith(mark, at)) continue;
    const from = at + mark.length;
    if (/\s/.test(text[from] || " ")) return null;
    if (mark[0] === "_" && at > 0 && /\w/.test(text[at - 1])) return null;
    const end = endOf(text, mark, from);
    if (end < 0 || (mark[0] === "_" && /\w/.test(text[end + mark.length] || ""))) continue;
    return [el(tag, null, ...inline(text.slice(from, end), depth + 1)), end + mark.length];
  }
  return null;
}

function inline(text, depth = 0) {
  if (text.length > MAX_INLINE) return plainText(text);
  const nodes = [];
  let plainFrom = 0;
  const special = /[\\`*_~[!<h$]/g;
  for (let found = special.exec(text); found; found = special.exec(text)) {
    const made = inlineAt(text, found.index, depth);
    if (!made) continue;
    if (found.index > plainFrom)
      nodes.push(document.createTextNode(text.slice(plainFrom, found.index)));
    nodes.push(made[0]);
    plainFrom = special.lastIndex = made[1];
  }
  if (plainFrom < text.length) nodes.push(document.createTextNode(text.slice(plainFrom)));
  return nodes;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/;
// The line below a table's head: cells of dashes, with colons where they align.
const isDelimiters = (line) =>
  line.length < 1000 &&
  line.includes("-") &&
  line.includes("|") &&
  /^[-:|\s]+$/.test(line) &&
  cellsOf(line).every((cell) => /^:?-+:?$/.test(cell));

// How many lines from `at` on are one formula between $$ or \[ and its end; 0: none begins there.
function mathLines(lines, at) {
  const match = /^\s*(\$\$|\\\[)/.exec(lines[at]);
  if (!match) return 0;
  const end = DISPLAY_ENDS[match[1]];
  if (lines[at].trim() !== match[1] && lines[at].includes(end, match[0].length))
    return lines[at].trim().endsWith(end) ? 1 : 0;
  for (let i = at + 1; i < Math.min(lines.length, at + MAX_MATH_LINES); i += 1) {
    if (lines[i].trim().endsWith(end)) return i - at + 1;
    if (lines[i].includes(end)) return 0;
  }
  return 0;
}

// Lines to blocks { kind, lines }; a block's lines are all that makes it.
function blocksOf(lines) {
  const blocks = [];
  let at = 0;
  const take = (kind, test, more = {}) => {
    const from = at;
    do at += 1;
    while (at < lines.length && test(lines[at], at));
    blocks.push({ kind, lines: lines.slice(from, at), ...more });
  };
  while (at < lines.length) {
    const line = lines[at];
    if (line.length > MAX_INLINE) {
      take("paragraph", () => false);
      continue;
    }
    const fence = FENCE.exec(line);
    if (line.trim() === "") {
      at += 1;
    } else if (fence) {
      const isEnd = (l) => l.trim().startsWith(fence[1]) && /^(`+|~+)$/.test(l.trim());
      const from = at;
      for (at += 1; at < lines.length && !isEnd(lines[at]); ) at += 1;
      at += 1;
      blocks.push({ kind: "code", language: fence[2], lines: lines.slice(from, at) });
    } else if (mathLines(lines, at) > 0) {
      const last = at + mathLines(lines, at) - 1;
      take("math", (l, i) => i <= last);
    } else if (HEADING.test(line) || RULE.test(line)) {
      take(HEADING.test(line) ? "heading" : "rule", () => false);
    } else if (/^ {0,3}>/.test(line)) {
      take("quote", (l) => /^ {0,3}>/.test(l));
    } else if (ITEM.test(line)) {
      const indent = ITEM.exec(line)[1].length;
      const ordered = /\d/.test(ITEM.exec(line)[2]);
      take(
        "list",
        (l, i) =>
          l.trim() === ""
            ? /^\s+\S/.test(lines[i + 1] || "") || ITEM.test(lines[i + 1] || "")
            : /^\s+/.exec(l)?.[0].length > indent ||
              (ITEM.test(l) && !RULE.test(l) && /\d/.test(ITEM.exec(l)[2]) === ordered),
        { ordered },
      );
    } else if (line.includes("|") && isDelimiters(lines[at + 1] || "")) {
      take("table", (l) => l.includes("|"));
    } else {
      take(
        "paragraph",
        (l) =>
          l.trim() !== "" &&
          l.length <= MAX_INLINE &&
          !FENCE.test(l) &&
          !/^\s*(\$\$|\\\[)/.test(l) &&
          !HEADING.test(l) &&
          !RULE.test(l) &&
          !/^ {0,3}>/.test(l) &&
          !ITEM.test(l),
      );
    }
  }
  return blocks;
}

function listElement(block, depth) {
  const items = [];
  const base = ITEM.exec(block.lines[0])[1].length;
  for (const line of block.lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= base + 1) items.push([line.slice(match[0].length)]);
    else
      items[items.length - 1].push(
        line.slice(Math.min(/^\s*/.exec(line)[0].length, base + 2 + (block.ordered ? 1 : 0))),
      );
  }
  const start = block.ordered ? Number.parseInt(ITEM.exec(block.lines[0])[2], 10) : undefined;
  return el(
    block.ordered ? "ol" : "ul",
    { start },
    ...items.map((lines) => {
      const task = /^\[([ xX])\]\s+/.exec(lines[0]);
      if (task) lines[0] = (task[1] === " " ? "☐ " : "☑ ") + lines[0].slice(task[0].length);
      const inner = blocksOf(lines).map((b) => (b.kind === "paragraph" ? b.lines.join("\n") : b));
      return el(
        "li",
        null,
        ...inner.map((b) =>
          typeof b === "string" ? el("div", null, ...inline(b)) : blockElement(b, depth + 1),
        ),
      );
    }),
  );
}

function cellsOf(line) {
  return line
    .trim()
    .replace(/^\|/, "")
    .replace(/(^|[^\\])\|$/, "$1")
    .split(/(?<!\\)\|/)
    .slice(0, 64)
    .map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

function tableElement(block) {
  const aligns = cellsOf(block.lines[1]).map((c) =>
    /^:-+:$/.test(c) ? "center" : /-:$/.test(c) ? "right" : "",
  );
  const row = (line, tag) =>
    el(
      "tr",
      null,
      ...cellsOf(line)
        .slice(0, aligns.length)
        .map((cell, i) => el(aligns[i] ? `${tag}.${aligns[i]}` : tag, null, ...inline(cell))),
    );
  return el(
    "div.scroll",
    null,
    el(
      "table",
      null,
      el("thead", null, row(block.lines[0], "th")),
      el("tbody", null, ...block.lines.slice(2).map((line) => row(line, "td"))),
    ),
  );
}

const CODE_TOKENS =
  /(\/\/[^\n]*|#[^\n]*|--[^\n]*|\/\*[\s\S]*?\*\/)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)|\b(\d[\w.]*)\b|\b(abstract|and|as|async|await|auto|bool|break|case|catch|char|class|const|constexpr|continue|def|default|del|delete|do|double|elif|else|end|enum|except|export|extends|extern|false|finally|float|fn|for|from|func|function|global|if|impl|import|in|int|interface|is|lambda|let|long|match|mod|mut|namespace|new|nil|none|not|null|operator|or|package|pass|private|protected|pub|public|raise|return|self|short|signed|sizeof|static|struct|super|switch|template|then|this|throw|trait|true|try|type|typedef|typename|union|unsafe|unsigned|use|using|var|virtual|void|where|while|with|yield|SELECT|FROM|WHERE|AND|OR|NOT|INSERT|UPDATE|DELETE|CREATE|TABLE|JOIN|ON|GROUP|ORDER|BY|LIMIT|INTO|VALUES|None|True|False)\b/g;
const HASH_COMMENTS =
  /^(py|python|sh|bash|zsh|shell|yaml|yml|toml|ruby|rb|r|perl|make|makefile|dockerfile|cmake|conf|ini|)$/i;
const DASH_COMMENTS = /^(sql|lua|haskell|hs|ada|)$/i;
const MAX_COLOURED = 10000;

// Comments, texts, numbers and the words of common languages in colour.
function colouredCode(code, language) {
  if (
    code.length > MAX_COLOURED ||
    code.split("\n", 1)[0].length > MAX_SPAN ||
    /^(text|txt|plain|plaintext|console|output)$/i.test(language)
  )
    return plainText(code);
  const nodes = [];
  let from = 0;
  for (const match of code.matchAll(CODE_TOKENS)) {
    const [whole, comment, text, number, word] = match;
    if (comment?.startsWith("#") && !HASH_COMMENTS.test(language)) continue;
    if (comment?.startsWith("--") && !DASH_COMMENTS.test(language)) continue;
    const kind = comment ? "c" : text ? "s" : number ? "n" : word ? "k" : "";
    if (match.index > from) nodes.push(document.createTextNode(code.slice(from, match.index)));
    nodes.push(el(`span.${kind}`, null, whole));
    from = match.index + whole.length;
  }
  nodes.push(document.createTextNode(code.slice(from)));
  return nodes;
}

function codeElement(block) {
  const last = block.lines[block.lines.length - 1];
  const closed = block.lines.length > 1 && /^\s*(`{3,}|~{3,})\s*$/.test(last);
  const code = block.lines.slice(1, closed ? -1 : undefined).join("\n");
  return el(
    "figure.code",
    null,
    el(
      "figcaption",
      null,
      el("span", null, block.language || "text"),
      el("button", { type: "button", onclick: (e) => copyText(code, e.target) }, "Copy"),
    ),
    el("pre", { tabIndex: 0 }, el("code", null, ...colouredCode(code, block.language))),
  );
}

function blockElement(block, depth = 0) {
  const text = block.lines.join("\n");
  if (depth > MAX_NESTING) return el("p", null, ...plainText(text));
  switch (block.kind) {
    case "code":
      return codeElement(block);
    case "heading": {
      const [, marks, rest] = HEADING.exec(text);
      let title = rest.trim();
      while (title.endsWith("#")) title = title.slice(0, -1);
      return el(`h${Math.min(marks.length + 2, 6)}`, null, ...inline(title.trim()));
    }
    case "rule":
      return el("hr");
    case "quote":
      return el(
        "blockquote",
        null,
        ...blocksOf(block.lines.map((l) => l.replace(/^ {0,3}> ?/, ""))).map((b) =>
          blockElement(b, depth + 1),
        ),
      );
    case "list":
      return listElement(block, depth);
    case "table":
      return tableElement(block);
    case "math":
      return mathBlock(text);
    default:
      return el("p", null, ...inline(text));
  }
}

// Shows `text` in `node`. Blocks that are there already stay: with each token only the last one is
// made anew, so that what is selected or scrolled in others stays so.
function showMarkdown(node, text) {
  const blocks = blocksOf(text.replace(/\r\n?/g, "\n").split("\n"));
  const shown = node.shownBlocks || [];
  const sources = blocks.map((block) => block.kind + "\n" + block.lines.join("\n"));
  let same = 0;
  while (same < shown.length && same < sources.length && shown[same] === sources[same]) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  for (const block of blocks.slice(same)) node.append(blockElement(block));
  node.shownBlocks = sources;
}
